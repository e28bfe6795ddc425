"""PrefixIndex: which token prefixes are known, as a radix tree over blocks with per-block facts in columns.

Invariants (recounted by `check`): the tree is prefix-closed; a block number means one block until it is evicted or
removed, and while anybody may be reading it no other; nothing at or above a lease is evicted; blocks leave from the
tips. The index holds no bytes of KV, only the payload number its owner gave. Used by one thread.
"""

import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .branch import Branch, nearest
from .columns import Columns
from .keycache import KeyCache
from .keys import SEED_BYTES, Extras
from .leases import Leases
from .lru import Lru
from .policy import EvictionPolicy
from .replicas import effective_use
from .results import Insertion, Match, Removals, Snapshot
from .retention import RetentionColumns, Retentions
from .tokens import TOKEN_BYTES
from .tree import NONE, Tree, ancestry, flat

Numbers = NDArray[np.int32]


class PrefixIndex:
    """See the module. Costs, for a prompt of n blocks: match and insert O(n) memory comparison and copying, and
    O(branch points) in Python; lease O(branch points), 1 if the path is pinned; eviction O(log leaves) a block,
    amortised. Memory: about 145 bytes a block of 16 tokens plus 0.7 KB a branch; 32 more a block once keys are asked.
    """

    def __init__(
        self,
        seed: bytes,
        *,
        block_tokens: int = 16,
        policy: EvictionPolicy | None = None,
        hash_name: str = "sha256",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`seed`: the namespace fingerprint (32 bytes), parent key of first blocks. `policy` serves only this index."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"the seed is a fingerprint of {SEED_BYTES} bytes, not {len(seed)}")
        if block_tokens < 1:
            raise ValueError(f"block_tokens must be at least 1, not {block_tokens}")
        self.block_tokens = block_tokens
        self.seed = seed
        self.hash_name = hash_name
        self._clock = clock
        self._size = block_tokens * TOKEN_BYTES
        self._columns = Columns()
        self._tree = Tree(self._size, self._columns)
        self._leases = Leases(self._tree, self._columns)
        self._count = 0
        self._columns.add("value", np.int64, None)
        self._columns.add("hits", np.uint32, 0)
        self._columns.add("last_use", np.float64, None)
        self._columns.add("inserted_at", np.float64, None)
        self._retentions = RetentionColumns(self._columns)
        self._keys = KeyCache(self._tree, self._columns, seed, hash_name)
        self._policy = policy or Lru()
        self._policy.bind(self, self._columns)

    def __len__(self) -> int:
        return self._count

    @property
    def evictable(self) -> int:
        """Blocks that `evict` could free: all that are neither leased nor above a lease."""
        return self._count - self._leases.pinned

    @property
    def orphans(self) -> int:
        """Removed blocks that are still being read."""
        return self._leases.orphans

    @property
    def pinned(self) -> int:
        """Blocks marked pinned by `retain`; nothing to do with leases."""
        return self._retentions.pinned

    def match(self, tokens: bytes, *, limit: int | None = None, extras: Extras | None = None) -> Match:
        """The longest known prefix of packed tokens, in full blocks, at most `limit` of them. Changes nothing."""
        count = len(tokens) // self._size
        path, found = self._tree.walk(tokens, count if limit is None else max(0, min(count, limit)), extras)
        return Match(flat(path, found), found * self.block_tokens)

    def branch(self, tokens: bytes, match: Match) -> Branch | None:
        """What is known behind a match of packed tokens, and is most like their next full block; None when there is no
        such block, or nothing is known behind it. Compares 64 continuations at most, the newest."""
        wanted = tokens[len(match) * self._size : (len(match) + 1) * self._size]
        node = self._tree.node_of(match.last) if len(match) else self._tree.root
        return nearest(node, len(match) - node.depth, wanted) if len(wanted) == self._size else None

    def knows(self, tokens: bytes, blocks: int) -> bool:
        """Whether so many blocks of packed tokens are known; cheaper than a match, above all when they are not."""
        return self._tree.knows(tokens, blocks)

    def touch(self, blocks: Sequence[int] | Numbers) -> None:
        """One request used these blocks: one hit each, however often a block is named."""
        numbers = np.asarray(blocks, dtype=np.int32)
        if len(numbers):
            self._require(numbers)
            at = numbers.astype(np.intp)
            self._columns["hits"][at] += 1
            self._columns["last_use"][at] = self._clock()
            self._policy.touched(numbers)

    def insert(
        self, tokens: bytes, values: Sequence[int] | NDArray[Any], *, skip: int = 0, extras: Extras | None = None
    ) -> Insertion:
        """Make the first `skip + len(values)` blocks of packed tokens known. `values[i]` is the payload of block
        `skip + i`; blocks that are there keep theirs. ValueError, and no change, when the tokens are too few or when
        block `skip` would have no parent."""
        payload = np.asarray(values, dtype=np.int64)
        total = skip + len(payload)
        if skip < 0 or total * self._size > len(tokens):
            raise ValueError(f"blocks {skip}..{total - 1} do not lie within {len(tokens) // TOKEN_BYTES} tokens")
        path, found = self._tree.walk(tokens, total, extras)
        if skip > found:
            raise ValueError(f"block {skip} has no parent: only {found} blocks of its prefix are known")
        above = flat(path, found)
        if found == total:
            return Insertion(above, found)
        fresh = self._columns.allocate(total - found)
        now = self._clock()
        at = fresh.astype(np.intp)  # by which numpy indexes several times faster
        self._columns["value"][at] = payload[found - skip :]
        self._columns["last_use"][at] = now
        self._columns["inserted_at"][at] = now
        node = path[-1] if path else self._tree.root
        if found < node.depth + len(node.blocks):
            node = self._tree.split(node, found - node.depth)
        parent = int(above[-1]) if found else -1
        for numbers, run, extra in self._tree.grow(node, memoryview(tokens), fresh, found, extras):
            self._policy.inserted(numbers, parent, run, extra)
            parent = int(numbers[-1])
        self._count += len(fresh)
        self._policy.offer(self._tree.node_of(parent).id)
        return Insertion(np.concatenate([above, fresh]), found)

    def values(self, blocks: Sequence[int] | Numbers) -> NDArray[np.int64]:
        """Payloads of these blocks, int64, a copy. Orphans have theirs until they are handed back."""
        return self._columns["value"][np.asarray(blocks, dtype=np.int32)]

    def retain(
        self,
        blocks: Sequence[int] | Numbers,
        *,
        priority: int | NDArray[Any] | None = None,
        ttl_s: float | NDArray[Any] | None = None,
        pinned: bool | NDArray[Any] | None = None,
        origin: int | None = None,
    ) -> None:
        """Say how much these blocks (each named once) are worth keeping; None leaves a fact as it is, an array has a
        row a block. Priority 0..100 (new blocks: 50), seconds without use until it may leave first (0: never), leaves
        last; number of the one who has them, too (0: nobody). It is advice: for a policy that minds it (`Retained`,
        `Replicated`), never so that nothing can leave. KeyError for a block that is not in the index and ValueError
        for a value out of range, both without a change."""
        numbers = np.asarray(blocks, dtype=np.int32)
        if not len(numbers):
            return
        self._require(numbers)
        self._retentions.write(numbers, priority, ttl_s, pinned, origin)
        self._policy.retained(numbers)
        for ident in np.unique(self._columns["node"][numbers]).tolist():
            self._policy.offer(ident)

    def retention(self, blocks: Sequence[int] | Numbers) -> Retentions:
        """What `retain` said about these blocks. Those that just left the index still have theirs, until `insert`."""
        return self._retentions.of(blocks)

    def lease(self, block: int) -> None:
        """Pin a block and the path to it, counted. KeyError when it is not in the index."""
        self._leases.lease(block)

    def release(self, block: int) -> Removals:
        """Give one lease back; ValueError if the block has none. Returns orphans that nobody reads any more: their
        numbers, and the payloads they had, may be reused. Usually empty."""
        freed, left = self._leases.release(block)
        ident = int(self._columns["node"][left]) if left >= 0 else -1
        if ident >= 0:
            self._policy.offer(ident)
        if not freed:
            return _NO_REMOVALS
        numbers = np.array(freed, dtype=np.int32)
        self._columns.free(numbers)
        return self._facts(numbers)

    def leases(self, block: int) -> int:
        """Leases counted on this very block."""
        return int(self._columns["leases"][block])

    def remove(self, block: int) -> Removals:
        """Drop a block and all below it, root first, leased or not. Those that may be being read become orphans."""
        node = self._tree.node_of(block)
        offset = int(self._columns["depth"][block]) - node.depth
        gone = array("i", node.blocks[offset:])
        for below in self._tree.below(node):
            gone.extend(below.blocks)
        self._leases.detach(node, offset)
        if offset:
            self._tree.truncate(node, offset)
            left = node
        else:
            left = self._tree.unlink(node)
        numbers = np.array(gone, dtype=np.int32)
        self._columns["node"][numbers] = -1
        self._policy.dropped(numbers)
        self._retentions.left(numbers)
        self._policy.offer(left.id)
        self._count -= len(numbers)
        removed = self._facts(numbers)
        self._columns.free(numbers[~removed.orphans])
        return removed

    def evict(self, n: int) -> Removals:
        """Free up to `n` blocks in the policy's order: tips of the tree only, never at or above a lease."""
        policy, tree, victims = self._policy, self._tree, array("i")
        while len(victims) < n:
            leaf, count = policy.victim(n - len(victims))
            if leaf < 0:
                break
            node = tree.nodes[leaf]
            assert node is not None
            going = node.blocks[-count:]
            going.reverse()
            policy.evicted(going)
            self._count -= count
            self._retentions.left(going)
            victims += going
            policy.offer(tree.drop_tail(node, count).id)
        numbers = np.array(victims, dtype=np.int32)
        self._columns["node"][numbers.astype(np.intp)] = -1
        self._columns.free(numbers)
        return self._facts(numbers)

    def coldest(self) -> float | None:
        """Last use of the block that `evict` would free next, a replica aged; None when nothing can be."""
        leaf, _ = self._policy.victim(1)
        return None if leaf < 0 else effective_use(self._columns, self.tail(leaf), self._clock())

    def next_victims(self, limit: int) -> Numbers:
        """Up to `limit` blocks of one leaf that `evict` would free next, tail first; none when nothing can be."""
        leaf, count = self._policy.victim(limit)
        return self.tips(leaf, count) if leaf >= 0 else NONE

    def is_tip(self, block: int) -> bool:
        """Whether no block hangs below this one. KeyError when it is not in the index."""
        node = self._tree.node_of(block)
        return node.children is None and node.blocks[-1] == block

    def now(self) -> float:
        """The index's clock, seconds."""
        return self._clock()

    def tail(self, leaf: int) -> int:
        """For the policy: the evictable tail of that leaf, or -1."""
        node = self._tree.nodes[leaf] if leaf >= 0 else None
        if node is None or node.children is not None or node.pinned == len(node.blocks):
            return -1
        return node.blocks[-1]

    def tips(self, leaf: int, limit: int) -> Numbers:
        """For the policy: the tail of an evictable leaf and the blocks that could follow it, tail first."""
        node = self._tree.nodes[leaf]
        assert node is not None
        run = node.blocks[max(len(node.blocks) - limit, node.pinned) :]
        return np.frombuffer(run.tobytes(), dtype=np.int32)[::-1]

    def key(self, block: int) -> bytes:
        """The block's chained key; computed with those above it when first asked for, then cached."""
        return self._keys.key(block)

    def keys(self, path: Numbers, first: int = 0) -> list[bytes]:
        """Keys of a path's blocks from ordinal `first` on; computed when first asked for, then cached."""
        if first >= len(path):
            return []
        self._keys.key(int(path[-1]))
        return self._keys.rows(path[first:])

    def known_keys(self, blocks: Numbers) -> list[bytes]:
        """Keys of blocks that were asked for before. Those that just left still have theirs, until `insert`."""
        return self._keys.rows(blocks) if len(blocks) else []

    def parent(self, block: int) -> int | None:
        """The block above; None for a first block."""
        node = self._tree.node_of(block)
        offset = int(self._columns["depth"][block]) - node.depth
        above = node if offset else node.parent
        assert above is not None
        return above.blocks[offset - 1] if above.blocks else None

    def depth(self, block: int) -> int:
        """Blocks above this one: its ordinal in every prompt that has it."""
        self._tree.node_of(block)
        return int(self._columns["depth"][block])

    def path(self, block: int) -> Numbers:
        """All blocks from the root to this one, int32."""
        return flat(ancestry(self._tree.node_of(block)), self.depth(block) + 1)

    def tokens_of(self, block: int) -> bytes:
        """The block's own packed tokens."""
        node = self._tree.node_of(block)
        start = (int(self._columns["depth"][block]) - node.depth) * self._size
        return bytes(node.edge[start : start + self._size])

    def tokens_to(self, block: int) -> bytes:
        """The packed tokens of the whole prefix that ends in this block."""
        edges = [node.edge for node in ancestry(self._tree.node_of(block))]
        return b"".join(edges)[: (self.depth(block) + 1) * self._size]

    def extras_of(self, block: int) -> bytes:
        """The block's extras, empty for most."""
        return self._tree.node_of(block).extras

    def column(self, name: str, dtype: DTypeLike, fill: Any) -> None:
        """Add a column of the owner's; every new block starts with `fill`."""
        self._columns.add(name, dtype, fill)

    def col(self, name: str) -> NDArray[Any]:
        """A column (the owner's, or value, hits, last_use, inserted_at, leases, depth) indexed by block number; write
        only to your own. An insertion may replace the array, so take it anew after one."""
        return self._columns[name]

    def iterate(self) -> Iterator[int]:
        """All blocks, parents before children. The index must not change meanwhile."""
        for node in self._tree.below(self._tree.root):
            yield from node.blocks

    def runs(self) -> Iterator[tuple[Numbers, int, int, bytes]]:
        """All blocks once, parents before children, in runs: block numbers, the first ordinal, the block above (-1
        at the root), packed tokens. The index must not change meanwhile."""
        for node in self._tree.below(self._tree.root):
            assert node.parent is not None
            yield flat([node], len(node.blocks)), node.depth, (node.parent.blocks or [-1])[-1], bytes(node.edge)

    def snapshot(self) -> Snapshot:
        """A copy of everything the index knows, parents before children. O(blocks)."""
        nodes = list(self._tree.below(self._tree.root))
        numbers = flat(nodes, sum(len(node.blocks) for node in nodes))
        parents = array("i")
        for node in nodes:
            assert node.parent is not None
            parents.append(node.parent.blocks[-1] if node.parent.blocks else -1)
            parents.extend(node.blocks[:-1])
        facts = {name: self._columns[name][numbers] for name in ("hits", "last_use", "inserted_at")}
        return Snapshot(
            blocks=numbers,
            parents=np.array(parents, dtype=np.int32),
            tokens=np.frombuffer(b"".join(node.edge for node in nodes), dtype="<i4").reshape(-1, self.block_tokens),
            values=self._columns["value"][numbers],
            extras={node.blocks[0]: node.extras for node in nodes if node.extras},
            **facts,
        )

    def check(self) -> None:
        """AssertionError unless everything, recounted from the tree, agrees. O(everything), for tests and debugging."""
        live, orphans = self._tree.check(), self._leases.check()
        self._columns.check(live | orphans)
        assert not live & orphans, "an orphan is in the tree"
        assert len(live) == self._count, "blocks miscounted"
        self._retentions.check(live)
        tips = {node.id for node in self._tree.below(self._tree.root) if self.tail(node.id) >= 0}
        self._policy.check(tips)

    def _facts(self, numbers: Numbers) -> Removals:
        at = numbers.astype(np.intp)
        columns = self._columns
        return Removals(
            blocks=numbers,
            values=columns["value"][at],
            hits=columns["hits"][at],
            last_use=columns["last_use"][at],
            inserted_at=columns["inserted_at"][at],
            orphans=self._leases.orphaned(numbers),
        )

    def _require(self, numbers: Numbers) -> None:
        known = int(numbers.view(np.uint32).max()) < self._columns.numbers  # a negative one is very large there
        if not known or int(self._columns["node"][numbers.astype(np.intp)].min()) < 0:
            raise KeyError(f"a block of {numbers.tolist()[:8]} is not in the index")


_NO_REMOVALS = Removals(
    NONE, np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0), np.empty(0), np.empty(0, np.bool_)
)
