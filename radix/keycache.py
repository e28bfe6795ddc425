"""Keys of the blocks in a tree, hashed when first asked for and kept until the block leaves.

Invariant: where a block's key is cached, so are all above it (`Node.keyed` counts a run's cached leading blocks), so
that over its life a block is hashed at most once, and not at all if nobody asks.
"""

import numpy as np
from numpy.typing import NDArray

from .columns import Columns
from .keys import HASH_BYTES, framed, hasher
from .tree import Node, Tree


class KeyCache:
    """One row of bytes a block number, allocated at the first question."""

    def __init__(self, tree: Tree, columns: Columns, seed: bytes, hash_name: str) -> None:
        self._hash = hasher(hash_name)
        self._tree, self._columns, self._seed = tree, columns, seed
        self._rows: NDArray[np.uint8] = np.empty((0, HASH_BYTES[hash_name]), dtype=np.uint8)

    def key(self, block: int) -> bytes:
        """The block's key; hashes it and those above it that have none yet. KeyError when it is not in the tree."""
        node = self._tree.node_of(block)
        offset = int(self._columns["depth"][block]) - node.depth
        if offset >= node.keyed:
            self._compute(node, offset)
        return self._rows[block].tobytes()

    def rows(self, blocks: NDArray[np.int32]) -> list[bytes]:
        """Keys of blocks that were asked for before, of those too that have just left."""
        size, joined = self._rows.shape[1], self._rows[blocks].tobytes()
        return [joined[at : at + size] for at in range(0, len(joined), size)]

    def _compute(self, node: Node, offset: int) -> None:
        if len(self._rows) < self._columns.numbers:
            grown = np.empty((len(self._columns["node"]), self._rows.shape[1]), dtype=np.uint8)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        todo = [node]
        while not (top := todo[-1]).keyed and top.parent is not None and top.parent.blocks:
            todo.append(top.parent)
        parent = self._rows[top.blocks[top.keyed - 1]].tobytes() if top.keyed else self._seed
        for part in reversed(todo):
            parent = self._chain(part, offset + 1 if part is node else len(part.blocks), parent)

    def _chain(self, node: Node, stop: int, parent: bytes) -> bytes:
        """Hash the run's blocks up to `stop`; returns the last key."""
        if stop <= node.keyed:
            return parent
        new, size, tail, digests = self._hash, self._tree.block_bytes, framed(node.extras), list[bytes]()
        edge = bytes(node.edge[node.keyed * size : stop * size])
        for at in range(0, len(edge), size):
            parent = new(parent + edge[at : at + size] + tail).digest()
            digests.append(parent)
        numbers = np.frombuffer(node.blocks[node.keyed : stop].tobytes(), dtype=np.int32)
        self._rows[numbers] = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(len(numbers), -1)
        node.keyed = stop
        return parent
