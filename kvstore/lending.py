"""Lending: blocks of this store leased to another node, for as long as it copies them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .bringing import Bringer
from .residents import Residents


class Loan:
    """Blocks `first`.. of a prompt, leased. blocks: their bytes, uint8 [block_bytes] each, to be read only; checksums:
    xxh3-64; keys: chained block keys. on_release: ends the lease."""

    def __init__(
        self,
        first: int,
        blocks: Sequence[NDArray[np.uint8]],
        checksums: Sequence[int],
        keys: Sequence[bytes],
        on_release: Callable[[], None],
    ) -> None:
        self.first = first
        self.blocks = blocks
        self.checksums = checksums
        self.keys = keys
        self._on_release: Callable[[], None] | None = on_release

    @property
    def size_bytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def release(self) -> None:
        """No byte of it is read any more. Safe to call again."""
        release, self._on_release = self._on_release, None
        if release is not None:
            release()


class Lender(Protocol):
    """Who lends."""

    async def lend(
        self, fingerprint: bytes, tokens: bytes, first: int, *, max_blocks: int, deadline_s: float
    ) -> Loan | None:
        """Lease blocks `first`.. of packed tokens, up to the last full block, `max_blocks` at most: as many as are in
        DRAM, or can be by the deadline. None: there is none, or nothing to be had at present."""
        ...


class Lending:
    """The store as a Lender: spaces is its live table of namespaces."""

    def __init__(self, spaces: Mapping[bytes, Residents], bringer: Bringer, lease_ids: Iterator[int]) -> None:
        self._spaces = spaces
        self._bringer = bringer
        self._lease_ids = lease_ids
        self._held: dict[int, Residents] = {}

    def leases(self, space: Residents) -> list[int]:
        """Read leases held on a namespace."""
        return [lease for lease, owner in self._held.items() if owner is space]

    async def lend(
        self, fingerprint: bytes, tokens: bytes, first: int, *, max_blocks: int, deadline_s: float
    ) -> Loan | None:
        """As Lender.lend. It is one use of what is lent, and of all above it."""
        space = self._spaces.get(fingerprint)
        if space is None or first < 0 or max_blocks < 1:
            return None
        tokens = tokens[: (first + max_blocks) * space.block_token_bytes]
        match = space.index.match(tokens)
        if len(self._bringer.below(space, tokens)) <= max(len(match), first) or deadline_s <= 0:
            return self._lease(space, tokens, first)
        async with self._bringer.bring(space, tokens, skip=first, deadline_s=deadline_s, ask=False):
            return self._lease(space, tokens, first)

    def _lease(self, space: Residents, tokens: bytes, first: int) -> Loan | None:
        match = space.index.match(tokens)
        if len(match) <= first:
            return None
        space.index.touch(match.blocks)
        lease = next(self._lease_ids)
        slots = space.read(lease, match, first)
        self._held[lease] = space
        size = space.namespace.layout.block_bytes

        def release() -> None:
            del self._held[lease]
            space.end_read(space.reads[lease])

        return Loan(
            first,
            [space.view.block(slot)[:size] for slot in slots.slots.tolist()],
            slots.checksums.tolist(),
            space.index.keys(match.blocks, first),
            release,
        )
