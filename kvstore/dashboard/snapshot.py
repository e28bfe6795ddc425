"""Snapshot: what the page shows, read from the store at one moment for one kind of viewer. The only place of the
dashboard that knows the store."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ...proto import kv_pb2 as pb
from ..events.sight import Sees, everything
from ..insight.types import Finding, Sample, SpaceInsight
from ..service.frames import PACKAGE_VERSION
from ..service.servicer import Servicer
from ..stats import StoreStats
from ..store import Store
from ..types import Receipt
from ..why import told
from .timeline import Timelines

MOST_RECEIPTS = 512  # looked at for medians, and for what a tenant may see of the traffic
SHOWN_RECEIPTS = 40
SHOWN_PREFIXES = 25
PREFIX_TOKENS = 48  # of each, for its text
LATELY_S = 60.0
YOUNG_S = 600.0  # a node that is younger has little to show in a longer window


@dataclass(frozen=True, slots=True)
class Settings:
    """Of the node, as its operator set them. gpu_price: of one engine's accelerators for an hour; None = not told."""

    node: str = ""
    gpu_price: float | None = None
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Slow:
    """What is read every few seconds only, since it takes longer. spaces: the store's first, for who may see all."""

    prefixes: pb.PrefixesReply = field(default_factory=pb.PrefixesReply)
    spaces: Sequence[SpaceInsight] = ()
    findings: Sequence[Finding] = ()


@dataclass(frozen=True, slots=True)
class Last:
    """The last requests. total: ever, of all. recent: receipts that the viewer may see, newest first; receipts: the
    first of them as messages, without what the viewer must not learn. The times: medians of `recent`, of those that
    reused at least half of their prompt and of the others."""

    total: int = 0
    recent: Sequence[Receipt] = ()
    receipts: Sequence[pb.Receipt] = ()
    ttft_hit_s: float | None = None
    ttft_miss_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """now_s: Unix. state: as /ready says. timelines: until now. lately: the samples of the last minute. hbm_blocks:
    that engines say they have. whole: the viewer may see all namespaces; else timelines and samples are made of
    the last receipts, too."""

    now_s: float
    settings: Settings
    state: str
    version: str
    uptime_s: float
    stats: StoreStats
    timelines: Timelines
    lately: Sequence[Sample]
    last: Last
    hbm_blocks: int = 0
    cluster: pb.ClusterStatus | None = None
    drain: pb.DrainProgress | None = None
    slow: Slow = Slow()
    sees: Sees = everything
    whole: bool = True


def samples_of(receipts: Sequence[Receipt]) -> list[Sample]:
    """What a history says, as far as these tell it: a sample each. Of tiers they tell nothing."""
    return [_sample(each) for each in reversed(receipts)]


def reuses(receipt: Receipt) -> bool:
    """At least half of its prompt."""
    return 2 * receipt.tokens.get("computed", 0) <= sum(receipt.tokens.values())


def _sample(receipt: Receipt) -> Sample:
    hit, missed = reuses(receipt), receipt.tokens.get("computed", 0)
    return Sample(
        time_s=receipt.time_s,
        seconds=1.0,
        requests=1,
        tokens=receipt.tokens,
        misses={receipt.miss.reason: missed} if receipt.miss is not None else {},
        ttft_hit_s=receipt.ttft_s if hit else None,
        ttft_miss_s=None if hit else receipt.ttft_s,
        saved_s=receipt.saved_s or 0.0,
        tiers={},
    )


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


class Reader:
    """Reads snapshots of `servicer`'s store. state: what /ready says."""

    def __init__(
        self,
        store: Store,
        servicer: Servicer,
        settings: Settings,
        state: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._servicer = store, servicer
        self._settings, self._state, self._clock = settings, state, clock
        self._began_s = clock()  # with the node itself
        self._timelines = Timelines()
        self._kept: Last | None = None

    def read(self, sees: Sees, slow: Slow) -> Snapshot:
        """As it is now."""
        insight, now_s = self._store.insight, self._clock()
        handover = pb.StatusReply()
        self._servicer.describe_handover(handover)
        last = self._last(sees)
        if sees is everything:
            timelines, lately = self._timelines, insight.history(now_s - LATELY_S)
            timelines.bring(now_s, insight.history(timelines.until_s))
        else:
            timelines, samples = Timelines(), samples_of(last.recent)
            timelines.bring(now_s, samples)
            lately = [each for each in samples if each.time_s > now_s - LATELY_S]
        return Snapshot(
            now_s=now_s,
            settings=self._settings,
            state=self._state(),
            version=PACKAGE_VERSION,
            uptime_s=now_s - self._began_s,
            stats=self._store.stats(),
            timelines=timelines,
            lately=lately,
            last=last,
            hbm_blocks=self._store.holdings.hbm.blocks,
            cluster=handover.cluster if handover.HasField("cluster") else None,
            drain=handover.drain if handover.HasField("drain") else None,
            slow=slow,
            sees=sees,
            whole=sees is everything,
        )

    def _last(self, sees: Sees) -> Last:
        """Receipts are taken apart once for all who may see all."""
        kept = self._store.insight.receipts
        if sees is everything and self._kept is not None and self._kept.total == kept.total:
            return self._kept
        recent = [each for each in islice(kept, MOST_RECEIPTS) if sees(each.fingerprint)]
        if sees is not everything:
            recent = [replace(each, miss=told(each.miss)) for each in recent]
        wanted = pb.ReceiptsRequest(limit=SHOWN_RECEIPTS)
        last = Last(
            kept.total,
            recent,
            self._servicer.receipts(wanted, sees).receipts,
            _median(each.ttft_s for each in recent if each.ttft_s and reuses(each)),
            _median(each.ttft_s for each in recent if each.ttft_s and not reuses(each)),
        )
        if sees is everything:
            self._kept = last
        return last

    def window(self) -> str:
        """The one that a page begins with."""
        young = self._clock() - self._began_s < YOUNG_S
        return "5 min" if young else "15 min"

    async def read_slow(self, sees: Sees) -> Slow:
        """Yields to the loop as often as the listing does."""
        wanted = pb.PrefixesRequest(sort="hits", limit=SHOWN_PREFIXES, tokens=PREFIX_TOKENS)
        insight = self._store.insight
        return Slow(
            await self._servicer.prefixes(wanted, sees),
            [each for each in insight.spaces() if sees(each.fingerprint)],
            [each for each in insight.findings() if sees(each.fingerprint)],
        )
