"""Catalog: which blocks of one namespace a lower tier has, and in which order they leave it.

The tier keeps records by key and knows no prefixes; here is the tree over them, the same PrefixIndex with the same
policies as in DRAM. Invariant: a block is here only if the tier answered Stored for it (or had it at start), and its
parent is here too, so that what leaves, leaves from the tips. Used by the store's thread.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ..proto import DEFAULT_RETENTION
from ..proto.record import record_bytes
from ..radix import HASH_BYTES, TOKEN_BYTES, EvictionPolicy, Match, PrefixIndex, Removals
from .ghosts import Ghosts, seed_of, traces
from .stats import Counters
from .tenants.share import Share
from .tiers.nvme.types import Inventory
from .watch import Watcher, Watchers

NO_MATCH = Match(np.empty(0, dtype=np.int32), 0)


class Catalog:
    """See the module. Keys shorter than 32 bytes (xxh3-128) are kept with their own length."""

    def __init__(  # noqa: PLR0913  (each is a part of the depot)
        self,
        fingerprint: bytes,
        *,
        hash_name: str,
        block_tokens: int,
        block_bytes: int,
        policy: EvictionPolicy,
        clock: Callable[[], float],
        tier: str = "nvme",
        watchers: Watchers | None = None,
        share: Share | None = None,
        ghosts: Ghosts | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.fingerprint = fingerprint
        self.share = share
        """The tenant's, of this tier; None = nobody's, or there are no tenants."""
        self.unit_bytes = record_bytes(block_bytes, block_tokens)
        """What a block takes, uncompressed: a quota must not mean more on data that happens to compress."""
        self.hash_name = hash_name
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self.index = PrefixIndex(
            fingerprint, block_tokens=block_tokens, policy=policy, hash_name=hash_name, clock=clock
        )
        self.index.column("trace", np.uint64, 0)
        self._ghosts = Ghosts(1) if ghosts is None else ghosts
        self._counters = Counters() if counters is None else counters
        self._tier = tier
        self._watchers = Watchers() if watchers is None else watchers
        self._key_bytes = HASH_BYTES[hash_name]
        # Not the index's own cache of keys: an evicted block's key is needed, and must not be hashed from the root.
        self._keys: NDArray[np.uint8] = np.empty((0, self._key_bytes), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def block_token_bytes(self) -> int:
        return self.block_tokens * TOKEN_BYTES

    def keys(self, blocks: NDArray[np.int32]) -> list[bytes]:
        """Of blocks here, or just gone."""
        rows, size = self._keys[blocks].tobytes(), self._key_bytes
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    def parent_key(self, match: Match, ordinal: int) -> bytes:
        """Key of the block above `ordinal` on a matched path."""
        return self.keys(match.blocks[ordinal - 1 : ordinal])[0] if ordinal else self.fingerprint

    def key_above(self, block: int) -> bytes:
        """Key of a block's parent."""
        above = self.index.parent(block)
        return self.fingerprint if above is None else self.keys(np.array([above], dtype=np.int32))[0]

    def trace(self, match: Match) -> int:
        """What ghosts call the last block of a match; the namespace's own where there is none."""
        return int(self.index.col("trace")[match.last]) if len(match) else seed_of(self.fingerprint)

    def tokens_at(self, tokens: bytes, ordinal: int) -> bytes:
        """The packed tokens of block `ordinal` of a prompt."""
        return tokens[ordinal * self.block_token_bytes : (ordinal + 1) * self.block_token_bytes]

    def add(self, tokens: bytes, first: int, keys: Sequence[bytes]) -> NDArray[np.int32]:
        """The tier has blocks `first`.. of `tokens` now; the numbers of those that are new. ValueError when block
        `first` would have no parent."""
        done = self.index.insert(tokens, np.zeros(len(keys), dtype=np.int64), skip=first)
        fresh = done.blocks[done.existing :]
        self._write_keys(fresh, b"".join(keys[done.existing - first :]))
        if len(fresh):
            above = self.trace(Match(done.blocks[: done.existing], done.existing * self.block_tokens))
            names = traces(above, tokens, self.block_token_bytes, done.existing, len(done.blocks))
            self.index.col("trace")[fresh] = np.array(names, dtype=np.uint64)
        self._hold(len(fresh))
        self._counters.came_bytes[self._tier] += len(fresh) * self.unit_bytes
        if self._watchers.present and len(fresh):
            self._tell(done.blocks, done.existing, tokens)
        return fresh

    def tell_all(self, watcher: Watcher) -> None:
        """Tell a watcher of every block, once."""
        for blocks, first, above, tokens in self.index.runs():
            parent = self.keys(np.array([above]))[0] if above >= 0 else self.fingerprint
            watcher.stored(self._tier, self.fingerprint, first, self.keys(blocks), parent, tokens)

    def _tell(self, path: NDArray[np.int32], first: int, tokens: bytes) -> None:
        parent = self.keys(path[first - 1 : first])[0] if first else self.fingerprint
        own = tokens[first * self.block_token_bytes : len(path) * self.block_token_bytes]
        self._watchers.stored(self._tier, self.fingerprint, first, self.keys(path[first:]), parent, own)

    def drop(self, block: int, reason: str) -> list[bytes]:
        """A block is lost to the tier, "evicted", "corrupt" or "cleared"; its key and those of all below it, which
        nothing can reach any more."""
        return self._gone(self.index.remove(block), reason)

    def has(self, block: int, key: bytes) -> bool:
        """Whether the number still means the block of that key."""
        return bool(self.index.col("node")[block] >= 0) and self._keys[block].tobytes() == key

    def drop_tips(self, tokens: bytes, first: int) -> list[bytes]:
        """Drop blocks `first`.. of a prompt from its end on, up to one that others hang below; their keys."""
        keys: list[bytes] = []
        for block in self.index.match(tokens).blocks[first:][::-1].tolist():
            if not self.index.is_tip(block) or self.index.leases(block):
                break
            keys += self._gone(self.index.remove(block))
        return keys

    def evict(self, count: int) -> list[bytes]:
        """Up to `count` blocks in the policy's order; their keys."""
        return self._gone(self.index.evict(count), "evicted")

    def clear_prefix(self, tokens: bytes) -> list[bytes]:
        """Forget the last full block of these packed tokens and all that hangs below it; their keys."""
        full = len(tokens) // self.block_token_bytes
        match = self.index.match(tokens)
        return self.drop(match.last, "cleared") if full and len(match) == full else []

    def belong_to(self, share: Share) -> None:
        """To a tenant, from now on; it was nobody's."""
        assert self.share is None, "a catalog changed hands"
        self.share = share
        self._hold(len(self.index))

    def _hold(self, count: int) -> None:
        if self.share is not None:
            self.share.used += count * self.unit_bytes

    def _gone(self, removed: Removals, reason: str = "") -> list[bytes]:
        """Keys of what has left. reason: "" = it has only moved up."""
        keys = self.keys(removed.blocks)
        if reason:
            self._remember(removed, reason)
        self._hold(-len(keys))
        self._counters.left_bytes[self._tier] += len(keys) * self.unit_bytes
        if self._watchers.present:
            self._watchers.removed(self._tier, self.fingerprint, keys)
        return keys

    def clear(self) -> int:
        """Forget everything, leased or not; how many blocks it were."""
        count = len(self.index)
        self._hold(-count)
        self._counters.left_bytes[self._tier] += count * self.unit_bytes
        if self._watchers.present:
            self._watchers.cleared(self._tier, self.fingerprint)
        for block in [block for block in self.index.iterate() if self.index.depth(block) == 0]:
            self._remember(self.index.remove(block), "cleared")
        return count

    def _remember(self, removed: Removals, reason: str) -> None:
        kept_s = self.index.now() - removed.inserted_at
        self._ghosts.add(self.index.col("trace")[removed.blocks], reason, self._tier, kept_s)
        self._counters.left(self._tier, kept_s, removed.hits > 0)

    def load(self, found: Inventory, wall_s: float) -> list[bytes]:
        """Take in what the tier had at start, oldest first; keys of blocks that hang in the air, to be dropped. What
        has outlived its TTL at `wall_s` leaves first, and the TTL of the rest begins anew."""
        size, count = self._key_bytes, len(found.keys)
        keys, parents = found.keys.tobytes(), found.parents.tobytes()
        width = found.keys.shape[1]
        names = [keys[at * width : at * width + size] for at in range(count)]
        rows = {name: row for row, name in enumerate(names)}
        children: list[list[int]] = [[] for _ in range(count)]
        roots: list[int] = []
        for row in range(count):
            parent = parents[row * width : row * width + width]
            above = rows.get(parent[:size])
            if above is not None:
                children[above].append(row)
            elif parent == self.fingerprint:
                roots.append(row)
        placed = np.zeros(count, dtype=np.bool_)
        # By the age of the last block: what was written first is the first to leave again.
        for path in sorted(_paths(roots, children), key=lambda path: path[-1]):
            fresh_from = int(np.count_nonzero(placed[path]))  # earlier paths have brought a leading part
            blocks = self._place(found, names, path, fresh_from)
            placed[path[fresh_from:]] = True
            _apply(self.index, blocks, found, path[fresh_from:], wall_s)
        return [names[row] for row in np.flatnonzero(~placed).tolist()]

    def _place(self, found: Inventory, names: list[bytes], path: list[int], first: int) -> NDArray[np.int32]:
        return self.add(found.tokens[path].tobytes(), first, [names[row] for row in path[first:]])

    def _write_keys(self, blocks: NDArray[np.int32], keys: bytes) -> None:
        if not len(blocks):
            return
        rows = len(self.index.col("depth"))
        if len(self._keys) < rows:
            grown = np.empty((rows, self._key_bytes), dtype=np.uint8)
            grown[: len(self._keys)] = self._keys
            self._keys = grown
        self._keys[blocks] = np.frombuffer(keys, dtype=np.uint8).reshape(len(blocks), -1)

    def check(self) -> None:
        """AssertionError unless the keys are those of the tokens. O(everything), and hashes it all."""
        self.index.check()
        blocks = np.array(list(self.index.iterate()), dtype=np.int32)
        assert self.keys(blocks) == [self.index.key(int(block)) for block in blocks], "a key is not its block's"


_OVER_S = 0.001  # a TTL that has run out


def _paths(roots: list[int], children: list[list[int]]) -> list[list[int]]:
    """Rows from the root to a leaf, for every leaf. O(rows on all paths)."""
    found: list[list[int]] = []
    todo: list[list[int]] = [[root] for root in roots]
    while todo:
        path = todo.pop()
        while children[path[-1]]:
            first, *others = children[path[-1]]
            todo.extend([*path, other] for other in others)
            path.append(first)
        found.append(path)
    return found


def _apply(index: PrefixIndex, blocks: NDArray[np.int32], found: Inventory, rows: list[int], wall_s: float) -> None:
    """Retention as the records say."""
    priority, ttl_s, pinned = found.priority[rows], found.ttl_s[rows], found.pinned[rows]
    ttl_s = np.where(found.expires_s[rows] <= wall_s, _OVER_S, ttl_s)
    if (priority != DEFAULT_RETENTION.priority).any() or ttl_s.any() or pinned.any():
        index.retain(blocks, priority=priority, ttl_s=ttl_s, pinned=pinned)
