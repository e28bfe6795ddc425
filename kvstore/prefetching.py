"""Prefetches: what one session has brought up for requests that will come, from the lower tier and from other nodes.

Nothing is pinned, and what requests wait for goes first. Used on the store's loop.
"""

import asyncio
import logging
from dataclasses import dataclass, field

from .bringing import Bringer
from .flight import Flight
from .promoter import Promoter
from .residents import Residents

log = logging.getLogger(__name__)

MAX_PREFETCHES = 256  # of one session, not cancelled yet


@dataclass(slots=True, eq=False)
class _Prefetch:
    """asking: other nodes, None = not so. over: cancelled."""

    flights: list[Flight] = field(default_factory=list[Flight])
    asking: asyncio.Task[None] | None = None
    over: bool = False


class Prefetches:
    """By ticket, of one session."""

    def __init__(self, space: Residents, bringer: Bringer, promoter: Promoter) -> None:
        self._space = space
        self._bringer = bringer
        self._promoter = promoter
        self._all: dict[int, _Prefetch] = {}

    def begin(self, ticket: int, tokens: bytes, skip: int) -> None:
        """Bring a prefix up where that pays. Beyond MAX_PREFETCHES the oldest is cancelled."""
        if ticket in self._all:
            return
        space, bringer = self._space, self._bringer
        match, below = space.index.match(tokens), bringer.below(space, tokens)
        pays = bringer.pays(space, match, below, skip)
        first = max(len(below) if pays else 0, len(match), skip)
        asks = (pays or len(below) <= first) and bringer.asks(space, tokens, first)
        if not pays and not asks:
            return
        if len(self._all) >= MAX_PREFETCHES:
            self.cancel(next(iter(self._all)))
        prefetch, short = _Prefetch(), ""
        if pays:
            source = bringer.source(space, match, below)
            prefetch.flights, short = self._promoter.begin(space, tokens, match, source, urgent=False)
        self._all[ticket] = prefetch
        if asks and not short:
            prefetch.asking = asyncio.get_running_loop().create_task(self._ask(prefetch, tokens, first))

    def cancel(self, ticket: int) -> None:
        """The request has come, or will not; unknown tickets are ignored."""
        prefetch = self._all.pop(ticket, None)
        if prefetch is None:
            return
        prefetch.over = True
        if prefetch.asking is not None:
            prefetch.asking.cancel()
        self._promoter.leave(prefetch.flights)

    def close(self) -> None:
        """Cancel all."""
        for ticket in list(self._all):
            self.cancel(ticket)

    async def _ask(self, prefetch: _Prefetch, tokens: bytes, first: int) -> None:
        flights = list(prefetch.flights)
        had = len(flights)
        try:
            await self._bringer.ahead(self._space, tokens, first, flights)
        except Exception:
            log.exception("asking other nodes ahead of a request failed")
        if prefetch.over:  # a library may lose a cancellation
            self._promoter.leave(flights[had:])
        else:
            prefetch.flights += flights[had:]
