"""Walk: what hangs below a block, in steps that stay right when the tree changes between them.

A place is the number of the block there, ROOT above all of them. Nodes split, merge and leave; the number of a block
stays as it is until the block leaves, and `inserted_at` tells a number that was given out again. Changes nothing.
"""

from array import array
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .index import PrefixIndex
from .tree import Node, Tree

ROOT = -1


class Rest(NamedTuple):
    """blocks: from a place to the end of its run, the place's own first; tokens: theirs, packed."""

    blocks: "array[int]"
    tokens: bytes


def there(index: PrefixIndex, block: int, inserted_at: float) -> bool:
    """Whether the number still means the block that came at that time. The root is always there."""
    if block == ROOT:
        return True
    return bool(index.col("node")[block] >= 0 and index.col("inserted_at")[block] == inserted_at)


def heads(index: PrefixIndex, block: int) -> list[bytes]:
    """What the blocks right below a place are told apart by: their packed tokens and extras. O(1) a block."""
    node, at = _place(index, block)
    if at < len(node.blocks):
        return [_tokens(index, node, at)]
    return list(node.children or ())


def branches(index: PrefixIndex, block: int) -> int:
    """How many blocks are right below a place."""
    node, at = _place(index, block)
    return 1 if at < len(node.blocks) else len(node.children or ())


def child(index: PrefixIndex, block: int, head: bytes) -> int | None:
    """The block right below a place that has this head; None = there is none."""
    node, at = _place(index, block)
    if at < len(node.blocks):
        return node.blocks[at] if _tokens(index, node, at) == head else None
    found = (node.children or {}).get(head)
    return found.blocks[0] if found is not None else None


def head_of(index: PrefixIndex, block: int) -> bytes:
    """What this block is told apart by from others below the same place."""
    return index.tokens_of(block) + index.extras_of(block)


def rest(index: PrefixIndex, block: int) -> Rest:
    """The block and those that follow it without a branch, in this tree. O(blocks) of copying."""
    node, at = _place(index, block)
    return Rest(node.blocks[at - 1 :], bytes(node.edge[(at - 1) * _size(index) :]))


def subtree(index: PrefixIndex, block: int) -> NDArray[np.int32]:
    """The block and all below it, parents first. O(blocks) of copying."""
    node, at = _place(index, block)
    found = node.blocks[at - 1 :]
    for below in _tree(index).below(node):
        found.extend(below.blocks)
    return np.frombuffer(found.tobytes(), dtype=np.int32)


def run(index: PrefixIndex, number: int) -> NDArray[np.int32]:
    """The blocks of the run of that internal number, below numbers(); none when nothing has it."""
    node = _tree(index).nodes[number]
    return np.frombuffer(node.blocks.tobytes(), dtype=np.int32) if node is not None else np.empty(0, dtype=np.int32)


def numbers(index: PrefixIndex) -> int:
    """One more than the highest internal number of a run."""
    return len(_tree(index).nodes)


def _place(index: PrefixIndex, block: int) -> tuple[Node, int]:
    """A node, and how many of its blocks lead to the place. KeyError when the block is not in the tree."""
    tree = _tree(index)
    if block == ROOT:
        return tree.root, 0
    node = tree.node_of(block)
    return node, int(index.col("depth")[block]) - node.depth + 1


def _tokens(index: PrefixIndex, node: Node, at: int) -> bytes:
    size = _size(index)
    return bytes(node.edge[at * size : (at + 1) * size])


def _size(index: PrefixIndex) -> int:
    return _tree(index).block_bytes


def _tree(index: PrefixIndex) -> Tree:
    return index._tree  # pyright: ignore[reportPrivateUsage]  # the tree is this package's
