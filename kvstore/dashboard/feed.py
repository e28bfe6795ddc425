"""Feed: the page's parts, made once a second for all who look, and not at all while nobody does."""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..events.sight import Sees
from .snapshot import Reader, Slow, Snapshot
from .views import View
from .views.bar import bar
from .views.prefixes import prefixes
from .views.requests import requests
from .views.spaces import cluster, namespaces, tenants
from .views.tiers import misses, tiers
from .views.traffic import figures, first_tokens, traffic
from .views.what_if import curve, findings

log = logging.getLogger(__name__)

PERIOD_S = 1.0
MAX_PERIOD_S = 5.0
SLOW_PERIOD_S = 4.0
MOST_SHARE = 0.03
"""Of the loop's time, beyond which news come less often than once a second. A round takes a few milliseconds."""

Parts = Mapping[str, str]
"""JSON by part of the page."""


@dataclass(frozen=True, slots=True)
class Sort:
    """What viewers of one sort have in common, so that what they see is made once. tenant: of theirs, "" = they may see
    all."""

    tenant: str
    window: str


class Viewer(Protocol):
    """One page that is open and looked at."""

    @property
    def sort(self) -> Sort: ...

    @property
    def sees(self) -> Sees: ...

    def show(self, parts: Parts) -> None:
        """What has changed reaches the browser."""
        ...


class Feed:
    """Runs within the store's loop. cpu: seconds that this thread has worked. rest: waits so many seconds.
    spent_s: that all rounds have taken of it, but for the listing, which yields and has bounds of its own."""

    def __init__(
        self,
        reader: Reader,
        clock: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        rest: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._reader, self._clock, self._cpu, self._rest = reader, clock, cpu, rest
        self._viewers: set[Viewer] = set()
        self._slow: dict[str, Slow] = {}
        self._slow_due: dict[str, float] = {}
        self._seen: dict[str, Snapshot] = {}
        self._maker = _Maker()
        self._task: asyncio.Task[None] | None = None
        self.spent_s = 0.0
        self.rounds = 0

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    def join(self, viewer: Viewer) -> None:
        """From now on it is shown what is new. Twice is harmless."""
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    def leave(self, viewer: Viewer) -> None:
        """The last one stops the feed. Twice is harmless."""
        self._viewers.discard(viewer)

    def first(self, sort: Sort, sees: Sees) -> Parts:
        """For a page that is being made. What takes long is as old as it is, or missing; `join` brings it."""
        seen = self._reader.read(sees, self._slow.get(sort.tenant, Slow()))
        return self._maker.parts(seen, sort)

    def window(self) -> str:
        """The one that a page begins with."""
        return self._reader.window()

    def seen(self, tenant: str) -> Snapshot | None:
        """What was shown last to who may see that."""
        return self._seen.get(tenant)

    def hurry(self) -> None:
        """Something was changed: let the next round read everything."""
        self._slow_due.clear()

    async def stop(self) -> None:
        self._viewers.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        """Until nobody looks. A round that fails is logged and the next one tried: it is the supervisor of its task."""
        try:
            while self._viewers:
                took_s = 0.0
                try:
                    took_s = await self._round()
                except Exception:
                    log.exception("the dashboard could not be brought up to date")
                    took_s = MAX_PERIOD_S * MOST_SHARE
                await self._rest(min(max(PERIOD_S, took_s / MOST_SHARE), MAX_PERIOD_S))
        finally:
            self._task = None
            self._seen.clear()
            self._slow_due.clear()
            self._maker.forget()

    async def _round(self) -> float:
        """Seconds that it worked."""
        viewers = list(self._viewers)
        for viewer in {each.sort.tenant: each for each in viewers}.values():
            await self._refresh(viewer.sort.tenant, viewer.sees)
        took_s = 0.0
        made: dict[Sort, Parts] = {}
        for viewer in viewers:
            began, sort = self._cpu(), viewer.sort
            if sort not in made:
                seen = self._reader.read(viewer.sees, self._slow.get(sort.tenant, Slow()))
                self._seen[sort.tenant] = seen
                made[sort] = self._maker.parts(seen, sort)
            viewer.show(made[sort])
            took_s += self._cpu() - began
            await asyncio.sleep(0)  # the store's turn, between one page and the next
        self.spent_s += took_s
        self.rounds += 1
        return took_s

    async def _refresh(self, tenant: str, sees: Sees) -> None:
        now = self._clock()
        if now >= self._slow_due.get(tenant, now):
            self._slow_due[tenant] = now + SLOW_PERIOD_S
            self._slow[tenant] = await self._reader.read_slow(sees)


class _Maker:
    """Makes the parts, anew only those of which what they show has changed."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[object, str]] = {}

    def parts(self, seen: Snapshot, sort: Sort) -> Parts:
        """All of the page's."""
        window, tenant = sort.window, sort.tenant
        once: Mapping[str, tuple[object, Callable[[Snapshot], View]]] = {
            "curve": (seen.slow, curve),
            "findings": (seen.slow, findings),
            "prefixes": (seen.slow, prefixes),
            "requests": (seen.last, requests),
        }
        views: Mapping[str, View | None] = {
            "bar": bar(seen, window),
            "figures": figures(seen, window),
            "traffic": traffic(seen, window),
            "ttft": first_tokens(seen, window),
            "tiers": tiers(seen),
            "misses": misses(seen, window),
            "namespaces": namespaces(seen),
            "tenants": tenants(seen),
            "cluster": cluster(seen),
        }
        parts = {name: pack(view) for name, view in views.items()}
        for name, (source, make) in once.items():
            kept = self._kept.get((tenant, name))
            if kept is None or kept[0] is not source:
                kept = self._kept[tenant, name] = (source, pack(make(seen)))
            parts[name] = kept[1]
        return parts

    def forget(self) -> None:
        self._kept.clear()


def pack(view: Any) -> str:
    """As JSON; "" for None: there is no such part."""
    return json.dumps(view, ensure_ascii=False, separators=(",", ":")) if view is not None else ""
