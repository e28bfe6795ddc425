"""Leases: which blocks are pinned, and what becomes of a leased block that is removed all the same.

A lease is counted on one block, the deepest one its holder reads, and pins the path to it: nothing above a live block
is evicted. So a node needs to know only how many of its leading blocks are pinned (`Node.pinned`), and a lease walks up
no further than the first node that was pinned already.

A removed block that somebody may still be reading is an orphan: it is out of the tree, but its number is not reused
until the last lease at or below it is released. The lease goes on pinning what is left of its path, through an anchor:
one count on the block above the cut, which only that lease's end takes away.
"""

from bisect import bisect_left, insort

import numpy as np
from numpy.typing import NDArray

from .columns import Columns
from .tree import Node, Tree


class Leases:
    """Owns the column `leases`, and the pin counts in the nodes. Call `detach` before the tree drops a subtree."""

    def __init__(self, tree: Tree, columns: Columns) -> None:
        self._tree = tree
        self._columns = columns
        columns.add("leases", np.int32, 0)
        self.pinned = 0
        """Blocks in the tree at or above a lease."""
        self._anchors: dict[int, int] = {}  # block -> anchors among its leases
        self._held: dict[
            int, tuple[list[int], int]
        ] = {}  # leased orphan -> its removed path, block above the cut or -1
        self._readers: dict[int, int] = {}  # orphan -> leased orphans at or below it

    @property
    def orphans(self) -> int:
        """Removed blocks whose numbers are still in use."""
        return len(self._readers)

    def lease(self, block: int) -> None:
        """Count one lease on the block; O(nodes) up to the first that is pinned. KeyError if it is not in the tree."""
        node = self._tree.node_of(block)
        counts = self._columns["leases"]
        counts[block] += 1
        if counts[block] > 1:
            return
        depth = int(self._columns["depth"][block])
        if node.leased is None:
            node.leased = []
        insort(node.leased, depth)
        reach = depth - node.depth + 1
        while node.parent is not None and reach > node.pinned:
            had, node.pinned = node.pinned, reach
            self.pinned += reach - had
            if had:
                return
            node = node.parent
            node.pinning += 1
            reach = len(node.blocks)

    def release(self, block: int) -> tuple[list[int], int]:
        """Give one lease back. Returns the orphans that nobody reads any more, and the block of the tree that the lease
        had been counted on in the end, -1 if all its path was removed. ValueError if there is no lease to give back."""
        counts = self._columns["leases"]
        held = int(counts[block]) if 0 <= block < self._columns.numbers else 0
        if held <= self._anchors.get(block, 0):
            raise ValueError(f"block {block} is not leased")
        freed = list[int]()
        while block >= 0:
            counts[block] -= 1
            if counts[block]:
                break
            if block not in self._held:
                self._unlease(block)
                break
            path, block = self._held.pop(block)
            for orphan in path:
                self._readers[orphan] -= 1
                if not self._readers[orphan]:
                    del self._readers[orphan]
                    freed.append(orphan)
            if block >= 0:
                self._anchors[block] -= 1
                if not self._anchors[block]:
                    del self._anchors[block]
        return freed, block

    def orphaned(self, blocks: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Which of these blocks were removed while somebody may be reading them."""
        if not self._readers:
            return np.zeros(len(blocks), dtype=np.bool_)
        return np.fromiter((block in self._readers for block in blocks.tolist()), np.bool_, len(blocks))

    def detach(self, node: Node, offset: int) -> None:
        """The run of `node` from `offset` on and all below are about to leave the tree."""
        cut, below = node.depth + offset, list(self._tree.below(node))
        above = node.blocks[offset - 1] if offset else -1
        parent = node.parent
        assert parent is not None
        if not offset and parent.blocks:
            above = parent.blocks[-1]
        leased = [(part, depth) for part in (node, *below) for depth in part.leased or () if depth >= cut]
        for part, depth in leased:
            self._orphan(part, depth, node, offset, above)
        self.pinned -= max(node.pinned - offset, 0) + sum(part.pinned for part in below)
        if node.leased:
            node.leased = node.leased[: bisect_left(node.leased, cut)] or None
        was_pinned, node.pinned, node.pinning = node.pinned > 0, min(node.pinned, offset), 0
        if offset:
            self._settle(node)
        elif was_pinned:
            parent.pinning -= 1
            self._settle(parent)
        if above >= 0:
            for _ in leased:
                self.lease(above)
                self._anchors[above] = self._anchors.get(above, 0) + 1

    def _orphan(self, part: Node, depth: int, node: Node, offset: int, above: int) -> None:
        """Hold the path from the cut to the leased block at `depth` in `part`."""
        end = depth - part.depth + 1
        leased = part.blocks[end - 1]
        path = list[int]()
        while part is not node:
            path.extend(part.blocks[:end])
            assert part.parent is not None
            part = part.parent
            end = len(part.blocks)
        path.extend(part.blocks[offset:end])
        self._held[leased] = (path, above)
        for block in path:
            self._readers[block] = self._readers.get(block, 0) + 1

    def _unlease(self, block: int) -> None:
        node, depth = self._tree.node_of(block), int(self._columns["depth"][block])
        assert node.leased is not None
        del node.leased[bisect_left(node.leased, depth)]
        if not node.leased:
            node.leased = None
        self._settle(node)

    def _settle(self, node: Node) -> None:
        """Recompute how much of `node` is pinned after it may have become less, and of the nodes above."""
        while node.parent is not None:
            reach = node.leased[-1] - node.depth + 1 if node.leased else 0
            if node.pinning:
                reach = len(node.blocks)
            if reach == node.pinned:
                return
            self.pinned += reach - node.pinned
            node.pinned = reach
            if reach:
                return
            node = node.parent
            node.pinning -= 1

    def check(self) -> set[int]:
        """AssertionError unless a recount agrees; returns the orphans."""
        counts, pinned = self._columns["leases"], 0
        for node in self._tree.below(self._tree.root):
            assert node.parent is not None
            leased = [node.depth + offset for offset, block in enumerate(node.blocks) if counts[block]]
            assert (node.leased or []) == leased, "leased depths of a node are wrong"
            pinning = sum(1 for child in (node.children or {}).values() if child.pinned)
            assert node.pinning == pinning, "pinned children miscounted"
            reach = len(node.blocks) if pinning else leased[-1] - node.depth + 1 if leased else 0
            assert node.pinned == reach, "a pinned run has a wrong length"
            pinned += reach
        assert self.pinned == pinned, "pinned blocks miscounted"
        readers, anchors = dict[int, int](), dict[int, int]()
        for leased_orphan, (path, above) in self._held.items():
            assert counts[leased_orphan] > 0, "an orphan is held by nobody"
            for block in path:
                readers[block] = readers.get(block, 0) + 1
            if above >= 0:
                anchors[above] = anchors.get(above, 0) + 1
        assert self._readers == readers, "readers of orphans miscounted"
        assert self._anchors == anchors, "anchors miscounted"
        assert all(counts[block] >= count for block, count in anchors.items()), "an anchor pins nothing"
        return set(readers)
