"""The radix tree itself: nodes whose edges are runs of blocks, and the moves that keep it one.

Invariants: the tree is prefix-closed; a child is keyed by the bytes of its first block followed by its extras (plain
keys are exactly one block long, so that the two kinds never collide); a block with extras is a node of its own; a plain
node below the root never has one plain child only (they are merged), so that a walk meets branch points, not history.
Edges are bytearrays: comparing one is a memcmp, cutting either end moves nothing, growing the tail is amortised.
Used by one thread.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from .columns import Columns
from .keys import Extras

Numbers = NDArray[np.int32]


class Node:
    """A run of blocks. `depth` is the ordinal of its first block in every prompt that runs through it."""

    __slots__ = (
        "blocks",
        "children",
        "depth",
        "edge",
        "extras",
        "id",
        "keyed",
        "leased",
        "parent",
        "pinned",
        "pinning",
    )

    def __init__(self, ident: int, parent: "Node | None", depth: int) -> None:
        self.id = ident
        self.parent = parent
        self.depth = depth
        self.edge = bytearray()  # token bytes of the run
        self.blocks = array("i")  # block numbers of the run
        self.extras = b""
        self.children: dict[bytes, Node] | None = None  # None or non-empty
        self.keyed = 0  # leading blocks whose key is cached; all above are cached then
        self.pinned = 0  # leading blocks of the run that a lease here or below keeps
        self.pinning = 0  # children with pinned blocks
        self.leased: list[int] | None = None  # depths of this run's leased blocks, ascending


class Tree:
    """Structure only: which blocks follow which. Knows the columns `node` and `depth`, nothing else about a block."""

    def __init__(self, block_bytes: int, columns: Columns) -> None:
        self.block_bytes = block_bytes
        self.columns = columns
        self.root = Node(-1, None, 0)
        self.nodes: list[Node | None] = []
        self._free_ids: list[int] = []
        columns.add("node", np.int32, None)
        columns.add("depth", np.int32, None)

    def walk(self, tokens: bytes, count: int, extras: Extras | None) -> tuple[list[Node], int]:
        """Nodes along the longest known prefix of at most `count` blocks, and how many blocks that prefix has.

        The last node may be matched in part. O(bytes) of memcmp and O(nodes) of Python.
        """
        size = self.block_bytes
        end, at, stop = count * size, 0, 0
        marks = sorted((i for i, value in extras.items() if value), reverse=True) if extras else []
        node, path = self.root, list[Node]()
        while at < end and node.children is not None:
            while stop <= at:  # the next block with extras ends any plain run
                stop = min(marks.pop() * size, end) if marks else end
            key = tokens[at : at + size]
            if extras:
                key += extras.get(at // size, b"")
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            edge = child.edge
            if at + len(edge) <= stop and tokens.startswith(edge, at):
                at += len(edge)
                node = child
            else:
                at += size * _common(tokens, at, stop, edge, size)
                break
        return path, at // size

    def knows(self, tokens: bytes, count: int) -> bool:
        """Whether the first `count` blocks of plain tokens are known; cheaper than a walk, above all when not."""
        size, node, at, end = self.block_bytes, self.root, 0, count * self.block_bytes
        while at < end:
            child = node.children.get(tokens[at : at + size]) if node.children is not None else None
            if child is None:
                return False
            if at + len(child.edge) >= end:
                with memoryview(child.edge) as edge:
                    return tokens.startswith(edge[: end - at], at)
            if not tokens.startswith(child.edge, at):
                return False
            at, node = at + len(child.edge), child
        return True

    def grow(
        self, node: Node, tokens: memoryview, fresh: Numbers, start: int, extras: Extras | None
    ) -> list[tuple[Numbers, memoryview, bytes]]:
        """Hang blocks `start`.. of `tokens` under the end of `node`, numbered `fresh`; returns the runs with extras."""
        more = extras or {}
        stop = start + len(fresh)
        cuts = {stop, *(i + side for i, value in more.items() if value for side in (0, 1) if start < i + side < stop)}
        first, runs = start, list[tuple[Numbers, memoryview, bytes]]()
        for cut in sorted(cuts):
            extra = more.get(first, b"")
            run, numbers = tokens[first * self.block_bytes : cut * self.block_bytes], fresh[first - start : cut - start]
            if extra or node.extras or node.children is not None or node is self.root:
                node = self._attach(node, first, bytes(run[: self.block_bytes]) + extra)
                node.extras = extra
            node.edge += run
            node.blocks.frombytes(numbers.tobytes())
            at = numbers.astype(np.intp)  # by which numpy indexes several times faster
            self.columns["node"][at] = node.id
            self.columns["depth"][at] = np.arange(first, cut, dtype=np.int32)
            runs.append((numbers, run, extra))
            first = cut
        return runs

    def split(self, node: Node, count: int) -> Node:
        """Cut the run after `count` blocks; returns the new upper node. The lower part keeps the identity, so that
        an eviction queue's entry stays right. O(count)."""
        assert node.parent is not None
        assert node.parent.children is not None
        upper = self._new(node.parent, node.depth)
        upper.edge = node.edge[: count * self.block_bytes]
        upper.blocks = node.blocks[:count]
        node.parent.children[self._key(node)] = upper
        del node.edge[: count * self.block_bytes]
        del node.blocks[:count]
        upper.children = {self._key(node): node}
        upper.keyed, node.keyed = min(node.keyed, count), max(node.keyed - count, 0)
        upper.pinned, node.pinned = min(node.pinned, count), max(node.pinned - count, 0)
        upper.pinning = int(node.pinned > 0)
        node.depth += count
        node.parent = upper
        if node.leased:
            cut = bisect_left(node.leased, node.depth)
            upper.leased, node.leased = node.leased[:cut] or None, node.leased[cut:] or None
        self.columns["node"][_numbers(upper)] = upper.id
        return upper

    def drop_tail(self, leaf: Node, count: int) -> Node:
        """Take the last `count` blocks off a leaf; returns the node whose tail may have become a leaf's tail. Amortised
        O(count): a merge that follows is paid for by the insertion that had split the run."""
        left = len(leaf.blocks) - count
        if not left:
            return self.unlink(leaf)
        del leaf.blocks[left:]
        del leaf.edge[left * self.block_bytes :]
        leaf.keyed = min(leaf.keyed, left)
        return leaf

    def truncate(self, node: Node, count: int) -> None:
        """Drop all but the first `count` >= 1 blocks of the run, and everything below."""
        del node.blocks[count:]
        del node.edge[count * self.block_bytes :]
        node.keyed = min(node.keyed, count)
        for below in list(self.below(node)):
            self._forget(below)
        node.children = None

    def unlink(self, node: Node) -> Node:
        """Take a node out with everything below; returns the node that now ends where its parent ended."""
        parent = node.parent
        assert parent is not None
        assert parent.children is not None
        del parent.children[self._key(node)]
        for below in [node, *self.below(node)]:
            self._forget(below)
        if not parent.children:
            parent.children = None
            return parent
        return self._merge(parent) if len(parent.children) == 1 else parent

    def below(self, node: Node) -> Iterator[Node]:
        """All nodes under `node`, parents first."""
        stack = [node]
        while stack:
            children = stack.pop().children
            if children is not None:
                yield from children.values()
                stack.extend(children.values())

    def node_of(self, block: int) -> Node:
        """KeyError when the block is not in the tree."""
        ident = int(self.columns["node"][block]) if 0 <= block < self.columns.numbers else -1
        node = self.nodes[ident] if ident >= 0 else None
        if node is None:
            raise KeyError(f"block {block} is not in the index")
        return node

    def _new(self, parent: Node, depth: int) -> Node:
        ident = self._free_ids.pop() if self._free_ids else len(self.nodes)
        node = Node(ident, parent, depth)
        if ident == len(self.nodes):
            self.nodes.append(node)
        else:
            self.nodes[ident] = node
        return node

    def _attach(self, parent: Node, depth: int, key: bytes) -> Node:
        node = self._new(parent, depth)
        if parent.children is None:
            parent.children = {}
        parent.children[key] = node
        return node

    def _forget(self, node: Node) -> None:
        self.nodes[node.id] = None
        self._free_ids.append(node.id)

    def _key(self, node: Node) -> bytes:
        return bytes(node.edge[: self.block_bytes]) + node.extras

    def _merge(self, upper: Node) -> Node:
        """Join a node with its only child if both are plain; returns what is left. The lower keeps its identity."""
        assert upper.children is not None
        (lower,) = upper.children.values()
        above = upper.parent
        if above is None or upper.extras or lower.extras:
            return upper
        assert above.children is not None
        above.children[self._key(upper)] = lower
        lower.keyed = upper.keyed if upper.keyed < len(upper.blocks) else upper.keyed + lower.keyed
        lower.pinned = upper.pinned if not lower.pinned else len(upper.blocks) + lower.pinned
        lower.leased = [*(upper.leased or ()), *(lower.leased or ())] or None
        lower.edge = upper.edge + lower.edge
        lower.blocks = upper.blocks + lower.blocks
        lower.depth = upper.depth
        lower.parent = above
        self.columns["node"][_numbers(upper)] = lower.id
        self._forget(upper)
        return lower

    def check(self) -> set[int]:
        """AssertionError unless the structure is sound; returns all blocks in it."""
        seen = set[int]()
        for node in [self.root, *self.below(self.root)]:
            assert len(node.edge) == len(node.blocks) * self.block_bytes, "edge and block numbers differ in length"
            assert node.children is None or node.children, "an empty table of children"
            assert node is self.root or (self.nodes[node.id] is node and node.blocks), "a node is lost or empty"
            assert not node.extras or len(node.blocks) == 1, "a block with extras shares a node"
            assert len(seen) + len(node.blocks) == len(seen.union(node.blocks)), "a block number occurs twice"
            seen.update(node.blocks)
            for offset, block in enumerate(node.blocks):
                assert int(self.columns["node"][block]) == node.id, f"block {block} does not know its node"
                assert int(self.columns["depth"][block]) == node.depth + offset, f"block {block} has a wrong depth"
            for key, child in (node.children or {}).items():
                assert child.parent is node, "a child does not know its parent"
                assert key == self._key(child), "a child is filed under another key"
                assert child.depth == node.depth + len(node.blocks), "a child has a wrong depth"
                assert not child.keyed or node is self.root or node.keyed == len(node.blocks), (
                    "a key without its parent's"
                )
                plain = node is not self.root and not node.extras and not child.extras
                assert not (plain and len(node.children or {}) == 1), "two runs that should be one"
        used = [node for node in self.nodes if node is not None]
        assert len(used) + len(self._free_ids) == len(self.nodes), "a node id is lost"
        assert len(used) == sum(1 for _ in self.below(self.root)), "a node is known but not in the tree"
        return seen


NONE = np.empty(0, dtype=np.int32)
NONE.flags.writeable = False


def flat(path: Sequence[Node], count: int) -> Numbers:
    """The first `count` block numbers along the path, in one read-only array."""
    if not count:
        return NONE
    return np.frombuffer(b"".join([node.blocks for node in path]), dtype=np.int32, count=count)


def ancestry(node: Node) -> list[Node]:
    """From below the root to `node`."""
    path = list[Node]()
    while node.parent is not None:
        path.append(node)
        node = node.parent
    return path[::-1]


def _numbers(node: Node) -> Numbers:
    return np.frombuffer(node.blocks.tobytes(), dtype=np.int32)


def _common(tokens: bytes, at: int, stop: int, edge: bytearray, size: int) -> int:
    """Leading blocks (at least one) that `edge` shares with `tokens[at:stop]`, by bisection: two passes of memcmp."""
    low, high = 1, min(len(edge), stop - at) // size
    with memoryview(edge) as view:
        if tokens.startswith(view[: high * size], at):
            return high
        high -= 1
        while low < high:
            middle = (low + high + 1) // 2
            if tokens.startswith(view[low * size : middle * size], at + low * size):
                low = middle
            else:
                high = middle - 1
    return low
