"""What passes between a store and an engine's connector: values, and the one Protocol both clients implement.

Tokens are packed: bytes, little-endian int32, four bytes a token. Trouble is a result with a `reason`; an empty
reason means that everything asked for was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray

from ..proto import Namespace, RetentionRange
from .arena import ArenaView


class SlotRef(NamedTuple):
    """Where one block lies in the arena.

    slot:       index of its first 4 KiB page in the arena's data.
    generation: what ArenaView.generation(slot) must still say after the copy; otherwise the copy is void.
    checksum:   xxh3-64 of the block's block_bytes; 0 in a Reserved.
    """

    slot: int
    generation: int
    checksum: int


class Slots(Sequence[SlotRef]):
    """SlotRefs in order, kept as columns: a lease on a long prefix is made and sent without an object per block.

    slots: int64 or uint64 [n]; generations: uint32 [n]; checksums: uint64 [n]. Not to be changed.
    """

    __slots__ = ("_rows", "checksums", "generations", "slots")

    def __init__(self, slots: NDArray[Any], generations: NDArray[Any], checksums: NDArray[Any]) -> None:
        self.slots, self.generations, self.checksums = slots, generations, checksums
        self._rows: tuple[SlotRef, ...] | None = None

    @classmethod
    def of(cls, refs: Sequence[SlotRef]) -> Slots:
        """From rows."""
        columns = ([ref[i] for ref in refs] for i in range(3))
        slots, generations, checksums = map(np.array, columns, (np.int64, np.uint32, np.uint64))
        return cls(slots, generations, checksums)

    def __len__(self) -> int:
        return len(self.slots)

    @overload
    def __getitem__(self, index: int) -> SlotRef: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SlotRef]: ...
    def __getitem__(self, index: int | slice) -> SlotRef | Sequence[SlotRef]:
        if self._rows is None:
            columns = (self.slots.tolist(), self.generations.tolist(), self.checksums.tolist())
            self._rows = tuple(map(SlotRef, *columns))
        return self._rows[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(cast("Sequence[object]", other))

    def __hash__(self) -> int:
        return hash(tuple(self))


NO_SLOTS = Slots(np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint64))


@dataclass(frozen=True, slots=True, eq=False)
class HbmChange:
    """Blocks that came into an engine's own cache, or left it. numbers: uint32, the engine's for a block until it
    leaves. tokens: packed, of blocks that came, which lie in a row below `parent` (its number; -1: a first block); none
    of blocks that left."""

    numbers: NDArray[np.uint32]
    tokens: bytes = b""
    parent: int = -1


@dataclass(frozen=True, slots=True)
class Miss:
    """Why the first full block beyond what was found is not there; what is not known is 0 or empty.

    reason: Acquired's, or the engine's own. token: where the prompt breaks off what is cached: of "diverged" the first
    token that differs from every cached prompt, else the first of the block. tier, gone_s, kept_s: of what was here
    once ("evicted", "corrupt", "cleared"): which tier it left last, how long ago, and how long it had been there, since
    the store's start at most. tier: of what is here and was not brought ("deadline", "slower_to_load", "full", "io",
    "breaker", ...), which one has it.
    fields: of "other_namespace": which differ ("weights", "adapter", "dtype", "layout", "producer", "tenant", ...).
    cached: of "diverged": packed tokens that a cached prompt has from `token` on, a few.
    """

    reason: str
    token: int = 0
    tier: str = ""
    gone_s: float = 0.0
    kept_s: float = 0.0
    fields: tuple[str, ...] = ()
    cached: bytes = b""


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose request it is, for receipts and traces. traceparent: W3C trace context, "" = nobody traces it."""

    request_id: str = ""
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one request got, counted once, when its prompt is served.

    tokens: of the prompt by tier, with "hbm" and "computed"; sums to the prompt. miss: of the first full block that was
    computed; None: every full block was found. saved_s: by what was loaded, less the wait; None = not known. ttft_s:
    from the arrival to the first token. computed_s: what computing took, 0 = not known. prompt: packed, only of a
    prompt that the store was not asked about. time_s (Unix, at the first token) and the fields behind it are the
    store's to set.
    """

    request_id: str
    tokens: Mapping[str, int]
    miss: Miss | None = None
    queue_wait_s: float = 0.0
    cache_wait_s: float = 0.0
    saved_s: float | None = None
    ttft_s: float = 0.0
    computed_s: float = 0.0
    prompt: bytes = b""
    time_s: float = 0.0
    fingerprint: bytes = b""
    label: str = ""
    tenant: str = ""
    client: str = ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a look-up found: tokens by tier, and why the first full block beyond was not found ("" = all were).

    compute_s: what computing those tokens would take, as engines report; 0 = not known. load_s: what bringing them to
    DRAM would take, as measured.
    """

    tiers: Mapping[str, int]
    reason: str
    compute_s: float = 0.0
    load_s: float = 0.0
    miss: Miss | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """How one request has waited so far for others who compute what it needs; made by the store, given back with the
    next try.

    ticket: the client's number for the request, for abandon(). waited_s: all told; had: blocks that were there when it
    began to wait, until: those it waits for, both 0 before. expected_s: until they may be there.
    """

    ticket: int = 0
    waited_s: float = 0.0
    had: int = 0
    until: int = 0
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Acquired:
    """A read lease on consecutive blocks.

    lease:  handle for release(); 0 if and only if `slots` is empty: then there is nothing to release.
    first:  ordinal of the block of slots[0] (= the `skip` asked for).
    slots:  the blocks from `first` on.
    tiers:  tokens of `slots` by the tier they came from, in the order of the slots: "dram", then lower tiers; sums to
            len(slots) * block_tokens.
    reason: why the block behind the last one is not there: "" (all full blocks asked for are given), "never_seen",
            "diverged" (a cached prompt differs within the block), "other_namespace" (another one has it),
            "evicted", "corrupt", "cleared", "not_committed" (someone is writing it now), "deadline",
            "slower_to_load" (it is in a lower tier, and computing it takes less), "full" (no room to bring it up),
            "quota" (none within the tenant's), "io" and "breaker" (the device failed, or is out of use), "busy" (too
            many leases held), "disconnected", "error".
    miss:   more about the reason; None: nothing is missing, or nothing more is known.
    compute_s: seconds that computing these tokens would take, as engines report; 0 = not known.
    wait:   with reason "computing": somebody else computes more of it, and waiting is worth it. Nothing is leased;
            acquire again with it. None otherwise.
    """

    lease: int
    first: int
    slots: Slots
    tiers: Mapping[str, int]
    reason: str
    arena: ArenaView | None = None
    compute_s: float = 0.0
    wait: Wait | None = None
    miss: Miss | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """A write lease on slots to fill.

    lease:  handle for commit() or abort(); 0 if and only if `blocks` is empty.
    blocks: ordinals to write, consecutive: those asked for, without the leading ones that are already present.
    slots:  where, in the same order; as far as possible consecutive in the arena.
    reason: "" (all missing blocks are given), "present" (none is missing), "full" (no room that may be evicted),
            "quota" (the tenant's leaves none, and its own blocks may not go), "backlog" (too many slots reserved and
            not committed), "no_parent" (a block before `start` is missing), "draining" (this node will leave and takes
            nothing new), "busy", "disconnected", "error". With "full", "quota" and "backlog" the first of the blocks
            may still be given: a non-zero lease must be committed or aborted whatever the reason.
    """

    lease: int
    blocks: tuple[int, ...]
    slots: Slots
    reason: str
    arena: ArenaView | None = None


class StoreClient(Protocol):
    """A connector's view of a store, used from one asyncio loop. Both modes (embedded, sidecar) implement it.

    No verb raises for trouble with the store; only start() does, when the session is refused for good. After a lost
    connection all leases are void: release, commit and abort of an old lease do nothing (commit says False).
    """

    namespace: Namespace

    @property
    def arena(self) -> ArenaView | None:
        """None while detached."""
        ...

    @property
    def connected(self) -> bool: ...

    async def start(self) -> None:
        """Open the session. SessionRefused names the field that stands against it. A sidecar that is away is no
        error: the call returns at once and the client keeps trying."""
        ...

    async def acquire(
        self, tokens: bytes, *, skip: int, deadline_s: float, wait: Wait | None = None, origin: Origin | None = None
    ) -> Acquired:
        """Lease the longest stored prefix of `tokens`, less its first `skip` blocks (which the engine has).

        deadline_s: seconds the store may take to bring up what is not in DRAM; 0 = what is there now, no wait.
        wait: the request will compute what is missing, and would rather wait while somebody else does (see
        Acquired.wait); None: neither. origin: whose request it is; None: nobody will ask.
        """
        ...

    async def abandon(self, ticket: int) -> None:
        """The request of that Wait.ticket computes no more of its prompt. Unknown tickets are ignored; no answer."""
        ...

    async def reserve(
        self, tokens: bytes, *, start: int, count: int, retention: Sequence[RetentionRange] = ()
    ) -> Reserved:
        """Lease slots to write blocks start .. start+count-1 of `tokens`; present ones are left out.

        retention: of ranges of block ordinals; the default for the others. Where two ranges overlap, the later wins.
        """
        ...

    async def commit(self, lease: int, checksums: Sequence[int]) -> bool:
        """Make the written blocks visible, all at once; ends the lease.

        checksums: xxh3-64 of each block's block_bytes, in the order of Reserved.blocks. False: the lease is not
        known (any more), or the blocks' parents are gone. Blocks that someone else committed meanwhile stay theirs.
        """
        ...

    async def abort(self, lease: int) -> None:
        """End a write lease without a trace. Unknown leases are ignored."""
        ...

    async def release(self, lease: int, *, corrupt: Sequence[int] = ()) -> None:
        """End a read lease. corrupt: positions in Acquired.slots whose checksum failed; they leave the store."""
        ...

    async def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> None:
        """Set the retention of blocks of `tokens` that are stored, in whatever tier. No answer."""
        ...

    async def prefetch(self, ticket: int, tokens: bytes, *, skip: int) -> None:
        """Begin to bring `tokens` up to DRAM, where that pays, for a request that will acquire them soon. Pins
        nothing; no answer. ticket: the caller's, for cancel_prefetch."""
        ...

    async def cancel_prefetch(self, ticket: int) -> None:
        """The request will not come. Unknown tickets are ignored; what is being read still arrives."""
        ...

    async def observe(self, prefills: Sequence[tuple[int, int, float]]) -> None:
        """What prefill took in the engine: (tokens of context before, tokens computed, seconds) each. No answer."""
        ...

    async def hbm(self, changes: Sequence[HbmChange], *, whole: bool) -> None:
        """What the engine's own cache has; whole: all of it, else what changed since the last report of this session.
        No answer."""
        ...

    async def served(self, receipt: Receipt) -> None:
        """What one request got, once its prompt is served. No answer."""
        ...

    async def lookup(self, tokens: bytes) -> Lookup | None:
        """What is here of a prompt, and why not more: a dry run that leases and counts nothing. None: no answer."""
        ...

    async def close(self) -> None:
        """End the session and all its leases."""
        ...
