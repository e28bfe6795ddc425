"""KVPool: the paged KV memory of one engine, its free pages and the index of full blocks that share it.

A page is one block in the canonical layout. Each page is in exactly one state:

    FREE ──allocate──► PRIVATE ──publish──► INDEXED ──evict/clear──► FREE
                          │ ▲
                     hold ▼ │ (never back)         HELD ──unhold──► FREE

and a sequence's pages are always `index pages leased through one tip block` followed by `private pages`:

    table.pages   [ p0 p1 p2 ... | ............. ]
                    0 .. shared-1   shared .. len-1
                    INDEXED          PRIVATE

Whoever drops a table gives the lease back and frees the private tail; index pages are freed by eviction only. Belongs
to the engine's thread.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor

from ..connector.base import Miss
from ..radix import PrefixIndex
from .changes import ChangeLog

TOKEN_BYTES = 4  # packed tokens are little-endian int32

NOT_IN_HBM, CACHE_OFF = "not_in_hbm", "cache_off"  # reasons of a miss that no store was asked about
LEAST_SHARED = 2  # tokens of a prompt's first block: one alone is what a tokenizer begins every prompt with


class PageState(IntEnum):
    FREE = 0
    PRIVATE = 1
    INDEXED = 2
    HELD = 3


@dataclass(slots=True)
class PageTable:
    """The pages of one sequence in token order. blocks: index block numbers of the shared pages, root first."""

    pages: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)

    @property
    def shared(self) -> int:
        return len(self.blocks)

    @property
    def private(self) -> list[int]:
        return self.pages[len(self.blocks) :]


def make_pool_tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """[pages, kv_heads, layers, 2, block_tokens, head_dim], written once, so that no request pays a page fault and a
    masked position holds a number (0 times NaN would not be 0)."""
    return torch.empty(shape, dtype=dtype, device=device).zero_()


class KVPool:
    """Allocation, sharing and eviction of pages. index None: nothing is shared and every page is private."""

    def __init__(self, tensor: Tensor, index: PrefixIndex | None) -> None:
        self.tensor = tensor
        self.index = index
        self.num_pages: int = tensor.shape[0]
        self.block_tokens: int = tensor.shape[4]
        self._free = list(range(self.num_pages - 1, -1, -1))  # a stack: the page used last is the warmest
        self._state = bytearray(self.num_pages)
        self._held = 0
        self.log: ChangeLog | None = None  # of what the index gains and loses, while somebody wants it

    @property
    def free_pages(self) -> int:
        return len(self._free)

    @property
    def evictable(self) -> int:
        return self.index.evictable if self.index is not None else 0

    @property
    def pinned(self) -> int:
        """Indexed pages at or above a lease."""
        return len(self.index) - self.index.evictable if self.index is not None else 0

    @property
    def available(self) -> int:
        """Pages that allocate() can hand out now."""
        return len(self._free) + self.evictable

    @property
    def held(self) -> int:
        return self._held

    def allocate(self, count: int) -> list[int] | None:
        """`count` private pages, evicting cached blocks as needed; None, and nothing evicted, if there are too few."""
        if count > self.available:
            return None
        if count > len(self._free):
            self._evict(count - len(self._free))
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._move(page, PageState.FREE, PageState.PRIVATE)
        return taken

    def free(self, pages: Iterable[int]) -> None:
        """Gives private pages back. AssertionError on a page that is not private (a double free)."""
        for page in pages:
            self._move(page, PageState.PRIVATE, PageState.FREE)
            self._free.append(page)

    def hold(self, pages: Iterable[int]) -> None:
        """Takes private pages out of use while somebody else may still write into them."""
        for page in pages:
            self._move(page, PageState.PRIVATE, PageState.HELD)
            self._held += 1

    def unhold(self, pages: Iterable[int]) -> None:
        for page in pages:
            self._move(page, PageState.HELD, PageState.FREE)
            self._free.append(page)
            self._held -= 1

    def grow(self, table: PageTable, tokens: int) -> bool:
        """Appends private pages until the table covers `tokens` tokens; False, and no change, if there are too few."""
        pages = self.allocate(max(0, -(-tokens // self.block_tokens) - len(table.pages)))
        if pages is None:
            return False
        table.pages += pages
        return True

    def attach(self, table: PageTable, tokens: bytes, limit: int) -> int:
        """Leases the longest cached prefix, at most `limit` blocks, for a table without private pages.

        Returns the number of blocks that are new to the table. Counts no hit: see touch().
        """
        assert not table.private, "attach() behind private pages would leave a gap"
        if self.index is None or limit <= table.shared:
            return 0
        blocks = [int(block) for block in self.index.match(tokens, limit=limit).blocks]
        gained = len(blocks) - table.shared
        if gained > 0:
            self._retip(table, blocks)
            table.pages = [int(page) for page in self.index.values(blocks)]
        return max(0, gained)

    def known(self, tokens: bytes, limit: int) -> int:
        """How many leading blocks, at most `limit`, are cached. Leases nothing."""
        return len(self.index.match(tokens, limit=limit).blocks) if self.index is not None else 0

    def missing(self, tokens: bytes) -> Miss:
        """Why the first full block of packed tokens that is not cached is not, as far as this cache alone can tell."""
        if self.index is None:
            return Miss(CACHE_OFF)
        match = self.index.match(tokens)
        branch = self.index.branch(tokens, match)
        first = len(match) * self.block_tokens
        if branch is None or (not first and branch.common < LEAST_SHARED):
            return Miss(NOT_IN_HBM, first)
        return Miss("diverged", first + branch.common, cached=branch.known)

    def touch(self, table: PageTable) -> None:
        """One hit for every shared block of the table."""
        if self.index is not None and table.blocks:
            self.index.touch(table.blocks)

    def publish(self, table: PageTable, tokens: bytes, full: int) -> None:
        """Makes the table's first `full` blocks shared. Their KV must be complete.

        Where another sequence published the same block first, its page takes our page's place and ours is freed.
        """
        start = table.shared
        if self.index is None or full <= start:
            return
        ours = table.pages[start:full]
        added = self.index.insert(tokens[: full * self.block_tokens * TOKEN_BYTES], ours, skip=start)
        if self.log is not None and added.existing < full:
            self.log.came(added.blocks, added.existing, tokens, self.block_tokens * TOKEN_BYTES)
        for page in ours[added.existing - start :]:
            self._move(page, PageState.PRIVATE, PageState.INDEXED)
        if added.existing > start:
            twins = self.index.values(added.blocks[start : added.existing])
            table.pages[start : added.existing] = [int(page) for page in twins]
            self.free(ours[: added.existing - start])
        self._retip(table, [int(block) for block in added.blocks])

    def trim(self, table: PageTable) -> list[int]:
        """Takes the private tail off the table and hands it to the caller, who frees or holds it."""
        tail = table.private
        del table.pages[table.shared :]
        return tail

    def drop(self, table: PageTable) -> None:
        """Gives everything back; the shared blocks stay cached until they are evicted."""
        self.free(self.trim(table))
        self._retip(table, [])
        table.pages = []

    def pin(self, block: int) -> None:
        """Keeps a block and all before it from being evicted, until unpin()."""
        assert self.index is not None
        self.index.lease(block)

    def unpin(self, block: int) -> None:
        assert self.index is not None
        self.index.release(block)

    def clear(self) -> int:
        """Evicts every block that nothing leases; returns how many."""
        return self._evict(self.evictable)

    def check(self, tables: Sequence[PageTable], pins: Sequence[Sequence[int]], held: Sequence[int]) -> None:
        """Recounts: every page in exactly one place, every lease accounted for. AssertionError otherwise.

        tables: all that exist; pins: the block paths (root first) that pin() keeps; held: pages given to hold().
        """
        private = [page for table in tables for page in table.private]
        indexed: list[int] = []
        if self.index is not None:
            self.index.check()
            indexed = [int(page) for page in self.index.values(list(self.index.iterate()))]
            leased = {block for path in (*(table.blocks for table in tables), *pins) for block in path}
            assert len(self.index) - self.index.evictable == len(leased), "a lease is lost, or nobody's"
            for table in tables:
                expected = [int(page) for page in self.index.values(table.blocks)]
                assert table.pages[: table.shared] == expected, "a table and the index disagree about a page"
        everywhere = sorted((*self._free, *private, *indexed, *held))
        assert everywhere == list(range(self.num_pages)), "a page is lost or in two places"
        owners = (self._free, private, indexed, held)
        for state, pages in zip(PageState, owners, strict=True):
            assert all(self._state[page] == state for page in pages), f"a page is not {state.name}"
        assert self._held == len(held)

    def _evict(self, count: int) -> int:
        if self.index is None or count <= 0:
            return 0
        evicted = self.index.evict(count)
        if self.log is not None:
            self.log.left(evicted.blocks)
        pages: list[int] = evicted.values.tolist()
        for page in pages:
            self._move(page, PageState.INDEXED, PageState.FREE)
        self._free += pages
        return len(pages)

    def _retip(self, table: PageTable, blocks: list[int]) -> None:
        """Moves the table's one lease to the end of `blocks`: the new one first, so that nothing is ever unpinned."""
        if blocks:
            self.pin(blocks[-1])
        if table.blocks:
            self.unpin(table.blocks[-1])
        table.blocks = blocks

    def _move(self, page: int, old: PageState, new: PageState) -> None:
        assert self._state[page] == old, f"page {page} is {PageState(self._state[page]).name}, not {old.name}"
        self._state[page] = new
