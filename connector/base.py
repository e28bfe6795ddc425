"""What the engine sees of the cache: one non-blocking facade and four events.

The bundled engine calls a KVConnector from its step thread only; everything slow happens elsewhere and comes
back through poll(). One request's **fetch cycle** is a small state machine:

    fetch ──► (acquiring) ──Offer(0)───────────────────────────────────────────► ended
                  │
                  └─Offer(n > 0)─► (offered) ──decline──────────────────────────► ended
                                       └──load──► (loading) ──LoadDone──────────► ended

While somebody else computes what was asked for, Delayed comes, perhaps often, before the Offer.
cancel() ends the first two states at once (no event follows); a load in flight ends with its LoadDone, because
the copy may still be writing into the pages. Saves are independent of the cycle, and so are the hints (prefetch,
retain, observe, served): they have no event, and a store that is away or busy never learns of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ..kvstore.types import HbmChange, Lookup, Miss, Origin, Receipt
from ..proto import RetentionRange


@dataclass(frozen=True, slots=True)
class Offer:
    """What the store can add behind the blocks already in HBM: the answer to one fetch().

    blocks: full blocks on offer, the first one being block ordinal `hbm_blocks` of the request.
    tiers:  tokens by tier of those blocks ("dram", "nvme", "peer"); sums to blocks * block_tokens.
    reason: why it is not more; "" if all that was asked for is on offer, else the store's reason for the first
            block that is missing ("never_seen", "evicted", "slower_to_load", "io", ...), or "deadline", "disconnected",
            "busy", "error", "disabled" (there is no store).
    miss:   more about the store's reason, where it is known.
    """

    request_id: str
    blocks: int
    tiers: Mapping[str, int]
    reason: str
    miss: Miss | None = None


@dataclass(frozen=True, slots=True)
class Delayed:
    """An Offer takes longer: somebody else is computing what was asked for, and waiting for that pays. Within
    `within_s` from now comes the Offer or another Delayed. The cycle goes on; the request is still to be computed when
    nobody comes with it, so that it is no reason to keep others from running."""

    request_id: str
    within_s: float


@dataclass(frozen=True, slots=True)
class LoadDone:
    """The end of one load(): from here on nobody writes into its pages.

    blocks_ok: leading pages that hold verified bytes; the engine computes all tokens behind them.
    tiers:     tokens by tier of those blocks; sums to blocks_ok * block_tokens.
    reason:    "" if every page is good, else "corrupt", "stale", "deadline", "cancelled", "disconnected", "error".
    compute_s: what computing those blocks would have taken, as engines like this one report; 0 = not known.
    """

    request_id: str
    blocks_ok: int
    tiers: Mapping[str, int]
    reason: str
    compute_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SaveDone:
    """The end of one save(): from here on nobody reads its pages.

    saved: blocks that became visible in the store by this save; blocks that were already there, were dropped or
    failed are not counted. `start` and `count` repeat the call.
    """

    request_id: str
    start: int
    count: int
    saved: int


Event: TypeAlias = Offer | Delayed | LoadDone | SaveDone


def _no_counts() -> dict[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class ConnectorStatus:
    """Counters since the start (and four gauges) of one connector, for receipts and metrics.

    Counted in blocks and bytes, never as ratios. A fetch that found nothing is a miss, not a failure: `failures`
    counts, by reason, the fetches and loads that trouble made shorter (deadline, disconnected, corrupt, stale,
    busy, cancelled, error, and a lower tier's io and breaker); `misses` counts the offers by the store's own reasons.
    `dropped_saves` is in blocks. `prefetches` counts those that were taken, `prefetches_in_flight` those of them that
    are neither cancelled nor followed by their request's fetch. `receipts` counts those sent to the store,
    `dropped_receipts` those that were not: it was away, or too many calls waited for it.
    """

    kind: str
    connected: bool
    fetches: int = 0
    loads: int = 0
    loaded_blocks: int = 0
    loaded_bytes: int = 0
    load_seconds: float = 0.0
    saves: int = 0
    saved_blocks: int = 0
    saved_bytes: int = 0
    corrupt_blocks: int = 0
    prefetches: int = 0
    receipts: int = 0
    dropped_receipts: int = 0
    misses: Mapping[str, int] = field(default_factory=_no_counts)
    failures: Mapping[str, int] = field(default_factory=_no_counts)
    dropped_saves: Mapping[str, int] = field(default_factory=_no_counts)
    fetches_in_flight: int = 0
    loads_in_flight: int = 0
    save_bytes_in_flight: int = 0
    prefetches_in_flight: int = 0


class KVConnector(Protocol):
    """The engine's side of the cache. No method blocks, none raises because of the cache.

    Threads: all methods are called from one thread (the engine's); `on_event`, given at construction, is called
    from any thread whenever poll() has something new, and must return at once. Page numbers are the engine's
    pool pages, one page per block. `tokens` are packed (little-endian int32).

    Exactly once: each fetch() that is not cancelled first gets one Offer; each load() gets one LoadDone, each
    save() one SaveDone, whatever happens in between (deadline, cancel, disconnect, corruption, close). Every wait
    is bounded by a deadline.

    Who frees: pages given to load() belong to the connector until LoadDone, pages given to save() until SaveDone;
    the engine must neither free nor rewrite them before. Leases on the store are the connector's own business.
    """

    def fetch(
        self, request_id: str, tokens: bytes, hbm_blocks: int, max_blocks: int, origin: Origin | None = None
    ) -> None:
        """Begin: what does the store have beyond `hbm_blocks`? Answered by one Offer.

        max_blocks: total full blocks the request could use, HBM included (the caller leaves at least one token to
        compute); no more than max_blocks - hbm_blocks are offered. A non-empty offer pins the blocks until load(),
        decline() or cancel(). A request has one cycle at a time: fetch() before the former cycle of the same id
        has ended (a cancelled load still copying) is answered by Offer(0, reason="busy"). origin: whose request it is,
        for the store's receipts and traces.
        """
        ...

    def load(self, request_id: str, pages: Sequence[int]) -> None:
        """Copy the first len(pages) offered blocks into these pages, in order; answered by one LoadDone.

        Fewer pages than offered are fine. Without a standing offer the answer is LoadDone(0, reason="error").
        """
        ...

    def decline(self, request_id: str) -> None:
        """The standing offer is not wanted (no pages): its pins go. No event; unknown ids are ignored."""
        ...

    def save(
        self,
        request_id: str,
        tokens: bytes,
        start: int,
        pages: Sequence[int],
        retention: Sequence[RetentionRange] = (),
    ) -> None:
        """Store the full blocks start..start+len(pages)-1 of `tokens` from these pages; answered by one SaveDone.

        retention: of ranges of block ordinals of the prompt, those outside of this save included; blocks in none have
        the default. It also reaches blocks that turn out to be there already.

        When the backlog is full, the store is away or has no room, the save is dropped, counted by reason, and
        SaveDone(saved=0) follows. Pages are read after the GPU work queued so far on the caller's current stream.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """The request is aborted or preempted: drop its cycle, its pins and its prefetch. Called for one that runs,
        too, when it will not compute the rest of its prompt: others may be waiting for that.

        After the call no Offer of this request comes out of poll(). A load in flight still ends in one LoadDone;
        saves go on to their SaveDone (their bytes are good). Unknown ids are ignored.
        """
        ...

    def retain(self, tokens: bytes, retention: Sequence[RetentionRange]) -> None:
        """Set the retention of blocks of `tokens` that are stored, those of earlier save()s included. A hint."""
        ...

    def prefetch(self, request_id: str, tokens: bytes, hbm_blocks: int) -> bool:
        """The request will fetch() these full blocks, beyond those in HBM, soon: the store may bring them nearer.

        A hint that pins nothing; it stands until fetch() or cancel() of the same id. False: not taken (too many stand,
        or there is no store at the moment); ask again later.
        """
        ...

    def observe(self, first: int, tokens: int, seconds: float) -> None:
        """The engine computed `tokens` tokens behind a context of `first`, alone, in so many seconds. A hint, from
        which the store learns what its blocks are worth. Costs next to nothing; call it for each such step."""
        ...

    def hbm(self, changes: Sequence[HbmChange], *, whole: bool) -> bool:
        """What the engine's own cache gained and lost since the last call, in order; whole: all it has instead. A hint,
        for those who route requests. False: not taken, and what was said before is forgotten: say all of it, later."""
        ...

    def served(self, receipt: Receipt) -> None:
        """What one request got, once its prompt is served. A hint: call it once a request."""
        ...

    def lookup(self, tokens: bytes, timeout_s: float) -> Lookup | None:
        """What the store has of a prompt, and why not more: a dry run. None: it cannot say. For operators' questions,
        the one exception: it waits, at most timeout_s, and any thread but the engine's may call it."""
        ...

    def poll(self) -> list[Event]:
        """Take all events since the last call, in order of completion."""
        ...

    def status(self) -> ConnectorStatus: ...

    def close(self) -> None:
        """End everything: outstanding loads and saves get their events (poll() may be called once more after),
        leases are released, threads joined; returns within a few seconds even if the store never answers. Later calls
        are answered as by a detached store. Closing twice is harmless."""
        ...
