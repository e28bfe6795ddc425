"""Lander: makes the blocks of flights visible once they have come, in order, each under those that the one before has
landed.

What lands costs its share of a processor that verifies and serves meanwhile, and most of that for each landing, not for
each block. So flights that have come wait for those behind them, for as long as nobody waits for less.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from .flight import Flight, Pin, Stage
from .residents import Residents
from .source import BEYOND
from .stats import Counters
from .tiers import Failed, Got, Hit

LAND_TOGETHER = 16  # flights


class Lander:
    """on_end: told of each flight that has ended. spawn: starts a task that the store's stop waits for."""

    def __init__(
        self,
        counters: Counters,
        lease_ids: Iterator[int],
        *,
        on_end: Callable[[Flight], None],
        spawn: Callable[[Coroutine[Any, Any, Any]], None],
    ) -> None:
        self._counters = counters
        self._lease_ids = lease_ids
        self._on_end = on_end
        self._spawn = spawn
        self.held: dict[int, Residents] = {}
        """Write leases of flights, and read leases that pin what has landed, by id."""

    def settle(self, flight: Flight, *, now: bool = False) -> None:
        """This flight has come, has ended, or can wait no longer (`now`): land those before and behind it that have
        come, up to the first that has not, unless all had better wait for that one."""
        run = _run(flight)
        if run and (now or not _patient(run)):
            self._land(run)
            for each in run:
                for follower in each.followers:
                    if follower.answers is not None:
                        self.settle(follower)

    def abandon(self, flight: Flight) -> None:
        """It will not be read."""
        before = flight.previous
        self._free(flight.space, flight.lease.id)
        self._end(flight, "cancelled")
        for each in ([before] if before is not None else []) + flight.followers:
            self.settle(each)

    def unpin(self, flight: Flight) -> None:
        """Nobody waits for it any more."""
        pin, flight.pin = flight.pin, None
        if pin is not None:
            pin.flights -= 1
            if not pin.flights:
                del self.held[pin.lease]
                flight.space.end_read(flight.space.reads[pin.lease])

    def _land(self, run: Sequence[Flight]) -> None:
        """Make the leading blocks that came visible, pin them for those who wait, free the other slots."""
        lost = run[0].previous.reason if run[0].previous is not None else ""
        good: list[Flight] = []
        checksums: list[int] = []
        for flight in run:
            answers = flight.answers or ()
            hits = [] if lost else _leading_hits(answers)
            if len(hits) < len(answers):
                lost = lost or flight.source.why(answers[len(hits)])
                self._turn_away(flight, len(hits), answers)
            flight.reason = lost
            if hits:
                good.append(flight)
                checksums += [hit.checksum for hit in hits]
        failed = self._commit(good, checksums) if good else ""
        for flight in run:
            self._end(flight, failed or flight.reason)

    def _commit(self, flights: Sequence[Flight], checksums: list[int]) -> str:
        counts = [len(flight.lease.slots) for flight in flights]
        space, source, lease = flights[0].space, flights[0].source, flights[0].lease
        for flight in flights:
            del self.held[flight.lease.id]
        space.join(lease, [flight.lease for flight in flights[1:]])
        void = lease.void
        fresh = space.commit(lease, checksums)
        if fresh is None:
            return "cleared" if void else "evicted"
        index, end = space.index, len(fresh) - len(checksums)  # below 0: of blocks that someone else has committed
        index.col("below")[fresh] = source.written
        if (origin := source.origin) != 0:
            index.retain(fresh, origin=origin)
        for flight, count in zip(flights, counts, strict=True):
            first, end = end, end + count
            mine = fresh[max(first, 0) : max(end, 0)]
            index.col("prefetched")[mine] = not flight.urgent
            said = flight.source.retentions(flight.first + count - len(mine), flight.first + count)
            if said is not None and not said.usual:
                index.retain(mine, priority=said.priority, ttl_s=said.ttl_s, pinned=said.pinned)
        self._counters.promoted_blocks[source.name] += len(fresh)
        self._pin(flights, counts)
        self._do(source.landed(lease.tokens, lease.first))
        return ""

    def _pin(self, flights: Sequence[Flight], counts: Sequence[int]) -> None:
        """For those who wait; a prefetch pins nothing, its request may be long in coming."""
        waited = [flight for flight in flights if flight.waiting and flight.urgent]
        if not waited:
            return
        space, lease = flights[0].space, flights[0].lease
        end = lease.first + sum(counts[: flights.index(waited[-1]) + 1])
        pin = Pin(next(self._lease_ids), len(waited))
        self.held[pin.lease] = space
        space.read(pin.lease, space.index.match(lease.tokens, limit=end), lease.first)
        for flight in waited:
            flight.pin = pin

    def _turn_away(self, flight: Flight, good: int, answers: Sequence[Got]) -> None:
        """Blocks from `good` on did not come, or have lost those above: count why, free their slots once no device
        writes to them any more."""
        for answer in answers[good:]:
            why = "" if isinstance(answer, Hit) else flight.source.why(answer)
            if why not in {"", BEYOND}:
                self._counters.failed_loads[why] += 1
        self._forget_lost(flight, answers)
        space, lease = flight.space, flight.lease
        rest = space.split(lease, good, next(self._lease_ids)) if good else lease
        rest.void = True
        self.held[rest.id] = space
        busy = [answer.until for answer in answers[good:] if isinstance(answer, Failed) and answer.until is not None]
        if busy:
            self._spawn(self._free_later(space, rest.id, busy))
        else:
            self._free(space, rest.id)

    async def _free_later(self, space: Residents, lease: int, busy: Sequence[asyncio.Event]) -> None:
        for event in busy:
            await event.wait()
        self._free(space, lease)

    def _free(self, space: Residents, lease: int) -> None:
        del self.held[lease]
        space.end_write(space.writes[lease])

    def _forget_lost(self, flight: Flight, answers: Sequence[Got]) -> None:
        for ordinal, (key, answer) in enumerate(zip(flight.keys, answers, strict=True), flight.first):
            todo = flight.source.lost(ordinal, key, answer)
            if todo is not None:
                self._do(todo)
                return  # with all below it

    def _do(self, todo: Coroutine[Any, Any, Any] | None) -> None:
        if todo is not None:
            self._spawn(todo)

    def _end(self, flight: Flight, reason: str) -> None:
        flight.stage, flight.reason = Stage.ENDED, reason
        flight.previous = None  # a chain of them would keep all that ever flew
        self._on_end(flight)
        flight.ended.set()
        if not flight.waiting:
            self.unpin(flight)


def _run(flight: Flight) -> list[Flight]:
    """From the first flight before this one that has not ended: those that have come, one after the other."""
    if flight.stage is Stage.ENDED:
        return []
    chain = [flight]
    while (before := chain[-1].previous) is not None and before.stage is not Stage.ENDED:
        chain.append(before)
    run: list[Flight] = []
    for each in reversed(chain):
        if not _lands_with(each, run):
            return run
        run.append(each)
    while behind := [each for each in run[-1].followers if _lands_with(each, run)]:
        run.append(behind[0])
    return run


def _lands_with(flight: Flight, run: Sequence[Flight]) -> bool:
    if flight.answers is None or flight.stage is Stage.ENDED:
        return False
    if not run:
        return True
    # Prompts may part within a flight: what belongs to the other one lands after it, not with it.
    follows = flight.first == run[-1].first + len(run[-1].keys)
    return follows and (flight.lease.void, flight.source.name) == (run[0].lease.void, run[0].source.name)


def _patient(run: Sequence[Flight]) -> bool:
    """Whether these had better land with what is still to come behind them."""
    if len(run) >= LAND_TOGETHER or any(flight.goal_of for flight in run):
        return False
    if any(each.answers is not None and each not in run for flight in run for each in flight.followers):
        return False  # it has come, and can land only after these
    whole = all(isinstance(answer, Hit) for flight in run for answer in flight.answers or ())
    return whole and (
        run[-1].expects_more
        or any(each.stage is not Stage.ENDED and each.answers is None for each in run[-1].followers)
    )


def _leading_hits(answers: Sequence[Got]) -> list[Hit]:
    hits: list[Hit] = []
    for answer in answers:
        if not isinstance(answer, Hit):
            break
        hits.append(answer)
    return hits
