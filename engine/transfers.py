"""Transfers: the engine's side of the connector. What is being fetched, loaded and saved, and what that keeps pinned.

A waiting sequence is prepared once per run: its HBM prefix is leased, the store is asked for more (FETCHING), offered
blocks are loaded into fresh pages (LOADING) and published, and whatever happens it ends up READY. Every cycle has an
id of its own, so that a late or duplicate event finds nobody. The connector's deadlines end every wait; a watchdog
behind them ends those whose event never comes. Two kinds of pages outlive their sequence: those that an abandoned
load may still write (held until its LoadDone) and those that a save reads (pinned until its SaveDone). Those that wait
behind the prepared ones are foreseen (see foresight.py). Belongs to the engine's thread.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from ..connector.base import Delayed, HbmChange, KVConnector, LoadDone, Miss, Offer, Origin, Receipt
from ..connector.limits import ConnectorLimits
from .config import EngineConfig
from .foresight import Foresight
from .pool import CACHE_OFF, NOT_IN_HBM, KVPool
from .receipt import shorten
from .saves import LOST_AFTER_S, Saves
from .sequence import Sequence, State
from .stats import EngineStats
from .tracing import waited

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

WATCHDOG_MARGIN_S = 1.0  # beyond the connector's own deadline
MAX_DELAYED = 64  # that wait for somebody who computes the same, and keep nobody from being prepared

#: Reasons of an offer that say that the store did not look at the prompt.
UNASKED = frozenset({"disconnected", "busy", "disabled", "error", "self_test"})


@dataclass(slots=True)
class _Fetch:
    sequence: Sequence
    begun_s: float
    deadline_s: float
    delayed: bool = False  # somebody else computes it


@dataclass(slots=True)
class _Load:
    sequence: Sequence | None  # None: abandoned
    pages: list[int]
    begun_s: float
    deadline_s: float


def connector_limits(config: EngineConfig) -> ConnectorLimits:
    """The connector's deadlines as the engine is configured; the watchdog here is behind the same ones."""
    return ConnectorLimits(acquire_deadline_s=config.kv_fetch_deadline_s, load_base_s=config.kv_load_deadline_s)


class Transfers:
    """Implements scheduler.Preparation. connector None: a sequence is ready at once."""

    def __init__(
        self,
        pool: KVPool,
        connector: KVConnector | None,
        stats: EngineStats,
        *,
        limits: ConnectorLimits,
        ahead: int,
        foreseen: int,
        clock: Callable[[], float],
    ) -> None:
        """ahead: sequences prepared at a time; foreseen: those behind them whose KV is prefetched."""
        self._pool = pool
        self._connector = connector
        self._stats = stats
        self._limits = limits
        self._page_bytes = pool.tensor[0].nbytes
        self._ahead = ahead
        self._clock = clock
        self._prepared: dict[Sequence, None] = {}
        self._fetches: dict[str, _Fetch] = {}
        self._loads: dict[str, _Load] = {}
        self._saves = Saves(pool, stats, clock)
        self._foresight = Foresight(pool, self._prefetch, self._cancel, most=foreseen, clock=clock)

    @property
    def active(self) -> bool:
        return self._connector is not None

    @property
    def prepared(self) -> list[Sequence]:
        return list(self._prepared)

    @property
    def held(self) -> list[int]:
        """Pages of abandoned loads."""
        return [page for load in self._loads.values() if load.sequence is None for page in load.pages]

    @property
    def pins(self) -> list[list[int]]:
        """Block paths that saves in flight keep."""
        return self._saves.pins

    @property
    def foreseen(self) -> frozenset[Sequence]:
        return self._foresight.seen

    def in_flight(self) -> bool:
        """Whether something will still end and give pages back."""
        return self.next_deadline_s() is not None

    def next_deadline_s(self) -> float | None:
        now = self._clock()
        waits = [wait.deadline_s for wait in (*self._fetches.values(), *self._loads.values())]
        return min((end_s for end_s in (*waits, *self._saves.deadlines) if end_s > now), default=None)

    # --- before a sequence runs

    def begin(self, seq: Sequence) -> bool:
        delayed = sum(fetch.delayed for fetch in self._fetches.values())
        if len(self._prepared) - min(delayed, MAX_DELAYED) >= self._ahead:
            return False
        self._prepared[seq] = None
        seq.state = State.READY
        seq.loaded, seq.compute_s = {}, 0.0
        caches = seq.cached and self._pool.index is not None
        seq.miss = Miss(NOT_IN_HBM if caches else CACHE_OFF)
        if self._connector is None or not caches:
            return True
        self._foresight.forget(seq)
        limit = seq.reusable_blocks(self._pool.block_tokens)
        tokens = seq.packed(limit * self._pool.block_tokens)
        self._pool.attach(seq.table, tokens, limit)
        if seq.table.shared < limit:
            seq.cycle += 1
            now = self._clock()
            seq.state = State.FETCHING
            wait_s = self._limits.fetch_s((limit - seq.table.shared) * self._page_bytes)
            self._fetches[_cycle(seq)] = _Fetch(seq, now, now + wait_s + WATCHDOG_MARGIN_S)
            request = seq.group.request
            origin = Origin(request.request_id, seq.group.span.traceparent)
            self._call(self._connector.fetch, _cycle(seq), tokens, seq.table.shared, limit, origin)
        return True

    def anticipate(self, waiting: Iterable[Sequence]) -> None:
        if self._connector is not None:
            self._foresight.consider(waiting)

    def release(self, seq: Sequence) -> None:
        assert seq.state in {State.FETCHING, State.READY}
        self.finish(seq)
        self._pool.drop(seq.table)
        seq.state = State.WAITING

    def finish(self, seq: Sequence) -> None:
        """Ends the preparation wherever it is; pages that a load may still write are held back."""
        self._prepared.pop(seq, None)
        self._foresight.forget(seq)
        if seq.state is State.FETCHING and self._fetches.pop(_cycle(seq), None):
            self._cancel(_cycle(seq))
        elif seq.state is State.LOADING:
            self._abandon(seq)

    def stopped(self, seq: Sequence) -> None:
        if seq.cycle and seq.computed < len(seq.prompt):
            self._cancel(_cycle(seq))

    def drain(self, running: int) -> None:
        """Takes all events, then gives up what is overdue. Loads leave a page for each of the `running`."""
        if self._connector is None:
            return
        for event in self._call(self._connector.poll) or []:
            if isinstance(event, Offer):
                self._on_offer(event, running)
            elif isinstance(event, LoadDone):
                self._on_load_done(event)
            elif isinstance(event, Delayed):
                self._on_delayed(event)
            else:
                self._saves.done(event)
        self._watch()

    def _on_offer(self, offer: Offer, running: int) -> None:
        fetch = self._fetches.pop(offer.request_id, None)
        if fetch is None or self._connector is None:
            self._stats.stray_events += 1
            return
        seq, block_tokens = fetch.sequence, self._pool.block_tokens
        self._waited(seq, fetch.begun_s)
        seq.state = State.READY
        seq.group.asked = seq.group.asked or offer.reason not in UNASKED
        if offer.reason:
            seq.miss = offer.miss or Miss(offer.reason)
        limit = seq.reusable_blocks(block_tokens)
        blocks = min(offer.blocks, limit - seq.table.shared)
        if blocks <= 0:
            return
        wanted = self._pool.known(seq.packed(limit * block_tokens), limit) < seq.table.shared + blocks
        pages = self._pool.allocate(min(blocks, self._loadable(running))) if wanted else None
        if not pages:  # in HBM by now, or no room for it
            seq.miss = Miss("no_pages") if wanted else seq.miss
            self._call(self._connector.decline, offer.request_id)
            return
        if len(pages) < blocks:
            seq.miss = Miss("no_pages")
        now = self._clock()
        seq.table.pages += pages
        seq.state = State.LOADING
        load_s = self._limits.load_s(len(pages) * self._page_bytes)
        self._loads[offer.request_id] = _Load(seq, pages, now, now + load_s + WATCHDOG_MARGIN_S)
        self._call(self._connector.load, offer.request_id, pages)

    def _on_delayed(self, event: Delayed) -> None:
        fetch = self._fetches.get(event.request_id)
        if fetch is not None:
            fetch.delayed = True
            fetch.deadline_s = self._clock() + event.within_s + WATCHDOG_MARGIN_S

    def _loadable(self, running: int) -> int:
        """Pages that one more load may take: the running can go on, and loads never hold more than half of memory
        between them (one alone may, or a long prompt could never be loaded)."""
        spare = self._pool.available - running
        if self._loads:
            spare = min(spare, self._pool.num_pages // 2 - sum(len(load.pages) for load in self._loads.values()))
        return max(0, spare)

    def _on_load_done(self, done: LoadDone) -> None:
        load = self._loads.pop(done.request_id, None)
        if load is None:
            self._stats.stray_events += 1
            return
        seq, pool = load.sequence, self._pool
        if seq is None:
            pool.unhold(load.pages)
            return
        self._waited(seq, load.begun_s)
        first, good = seq.table.shared, min(done.blocks_ok, len(load.pages))
        pool.publish(seq.table, seq.packed((first + good) * pool.block_tokens), first + good)
        pool.free(pool.trim(seq.table))
        self._saves.known(seq.table.blocks[first:])
        seq.loaded = shorten(done.tiers, good * pool.block_tokens)
        seq.compute_s = done.compute_s
        seq.miss = Miss(done.reason) if done.reason else seq.miss
        seq.state = State.READY

    def _watch(self) -> None:
        now = self._clock()
        for ident, fetch in [(i, f) for i, f in self._fetches.items() if f.deadline_s <= now]:
            del self._fetches[ident]
            self._cancel(ident)
            self._give_up(fetch.sequence, fetch.begun_s)
        for load in [load for load in self._loads.values() if load.sequence is not None and load.deadline_s <= now]:
            assert load.sequence is not None
            seq = load.sequence
            self._abandon(seq)
            self._give_up(seq, load.begun_s)

    def _give_up(self, seq: Sequence, begun_s: float) -> None:
        self._stats.late_transfers += 1
        self._waited(seq, begun_s)
        seq.miss = Miss("deadline")
        seq.state = State.READY

    def _abandon(self, seq: Sequence) -> None:
        load = self._loads[_cycle(seq)]
        load.sequence = None
        load.deadline_s = self._clock() + LOST_AFTER_S
        self._pool.hold(self._pool.trim(seq.table))
        self._cancel(_cycle(seq))

    def _waited(self, seq: Sequence, begun_s: float) -> None:
        now = self._clock()
        seq.cache_wait_s += now - begun_s
        waited(seq, begun_s, now)

    # --- after it ran

    def save(self, seq: Sequence, *, last: bool = False) -> None:
        """Hands full blocks that the store may lack to the connector: those of the prompt as they fill, generated ones
        in batches and, when it is the `last` call, the rest. Blocks found in HBM whose save had failed go along."""
        if self._connector is None or (start := self._saves.begin(seq, last=last)) is None:
            return
        full = seq.table.shared
        tokens, pages = seq.packed(full * self._pool.block_tokens), seq.table.pages[start:full]
        self._call(self._connector.save, seq.key, tokens, start, pages, seq.group.retention)

    def retain(self, seq: Sequence) -> None:
        """The prompt is served: also those of its blocks that were not saved now, since they were there, are to be kept
        as the request says. Behind save(), so that it reaches those as well that another request is saving."""
        group, size = seq.group, self._pool.block_tokens
        if group.retained or not group.retention or self._connector is None:
            return
        group.retained = True
        blocks = max(part.end for part in group.retention)
        self._call(self._connector.retain, seq.packed(min(blocks, len(seq.prompt) // size) * size), group.retention)

    def observe(self, first: int, tokens: int, seconds: float) -> None:
        """A step computed these tokens of one prompt and nothing else."""
        if self._connector is not None:
            self._call(self._connector.observe, first, tokens, seconds)

    def served(self, receipt: Receipt) -> None:
        """A request's prompt is served: the store hears what it got."""
        if self._connector is not None:
            self._call(self._connector.served, receipt)

    def report(self, changes: list[HbmChange], whole: bool) -> bool:
        return self._connector is None or bool(self._call(self._connector.hbm, changes, whole=whole))

    # --- the connector itself

    def close(self) -> None:
        """Ends the connector and takes its last events."""
        if self._connector is not None:
            self._call(self._connector.close)
            self.drain(0)
            self._connector = None

    def _call(self, verb: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """A connector that raises is one no longer used: what it was doing is given up, requests are computed."""
        try:
            return verb(*args, **kwargs)
        except Exception:
            log.exception("the KV connector raised; going on without it")
            self._connector = None
            for fetch in self._fetches.values():
                self._give_up(fetch.sequence, fetch.begun_s)
            self._fetches.clear()
            for load in [load for load in self._loads.values() if load.sequence is not None]:
                assert load.sequence is not None
                seq = load.sequence
                self._abandon(seq)
                self._give_up(seq, load.begun_s)
            return None

    def _prefetch(self, ident: str, tokens: bytes, known: int) -> bool:
        return self._connector is not None and bool(self._call(self._connector.prefetch, ident, tokens, known))

    def _cancel(self, cycle: str) -> None:
        if self._connector is not None:
            self._call(self._connector.cancel, cycle)


def _cycle(seq: Sequence) -> str:
    return f"{seq.key}#{seq.cycle}"
