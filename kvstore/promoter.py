"""Promoter: brings blocks into arena slots, from wherever they are, for requests that wait and for some that will come.

A run of wanted blocks is cut into flights of a few MiB. A block is in one flight at most: whoever wants it too joins
that one. Flights read side by side and land in order (landing.py). A landed flight keeps its blocks pinned until all
who waited for it have taken their leases or left; one that nobody waits for any more is given up unless it reads
already, and then its blocks are kept like any others. Used on the store's loop.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from ..radix import Match
from .flight import Flight, Stage
from .landing import Lander
from .residents import Residents
from .room import Room
from .source import Source
from .stats import Counters
from .tiers import Failed, Got, Wanted

log = logging.getLogger(__name__)

FLIGHT_BYTES = 8 << 20
MAX_READING = 8  # flights of a tier at once: more would only queue there, where a request overtakes no prefetch
READ_DEADLINE_S = 10.0  # of a flight; those who wait have deadlines of their own


class Promoter:
    """max_bytes: what slots of flights may take at once."""

    def __init__(
        self,
        room: Room,
        counters: Counters,
        lease_ids: Iterator[int],
        *,
        max_bytes: int,
    ) -> None:
        self._room = room
        self._lease_ids = lease_ids
        self._max_bytes = max_bytes
        self._bytes = 0
        self._flights: dict[bytes, Flight] = {}  # block key -> what brings it
        self._queues: tuple[deque[Flight], deque[Flight]] = (deque(), deque())  # urgent ones, others
        self._reading: Counter[str] = Counter()  # by tier, so that one that hangs keeps no other waiting
        self._tasks: set[asyncio.Task[None]] = set()
        self._lander = Lander(counters, lease_ids, on_end=self._ended, spawn=self._spawn)

    def begin(
        self,
        space: Residents,
        tokens: bytes,
        match: Match,
        source: Source,
        *,
        urgent: bool,
        behind: Flight | None = None,
        first: int | None = None,
        most: int | None = None,
    ) -> tuple[list[Flight], str]:
        """Get blocks `first` (without it, those right behind DRAM's match) .. source.end-1 of `tokens` on their way, by
        `most` new flights at most. behind: what brings the blocks above, if these are not in DRAM. Returns the flights
        that bring them, in order, each joined until leave(), and why ("full", "quota") if not all are on their way.
        With `most` they land only after another begin()."""
        start = len(match) if first is None else first
        keys = source.keys(start, source.end)
        flights, at = self._join(keys)
        for flight in flights:
            flight.expects_more = False
        reason = ""
        if at < len(keys):
            previous = flights[-1] if flights else behind
            fresh, short = self._launch(space, tokens, match, source, start + at, previous, most)
            reason = "" if at + sum(len(each.keys) for each in fresh) == len(keys) else short
            flights += fresh
            for last in flights[-1:]:
                last.expects_more = most is not None and reason != ""
        for flight in flights:
            flight.waiting += 1
            if urgent:
                self._hurry(flight)
        self._pump()
        for flight in flights:
            self._lander.settle(flight)  # it may have come, and have waited for one behind it that is not launched now
        return flights, reason

    async def wait(self, flights: Sequence[Flight], deadline_s: float) -> str:
        """Until all have landed, one has fallen short, or the deadline; "" or why it is not all."""
        end = asyncio.get_running_loop().time() + deadline_s
        for last in flights[-1:]:
            last.goal_of += 1
            self._lander.settle(last)  # it may have come, and have been waiting for others
        try:
            for flight in flights:
                if flight.stage is not Stage.ENDED:
                    async with asyncio.timeout_at(end):
                        await flight.ended.wait()
                if flight.reason:
                    return flight.reason
        except TimeoutError:
            self._lander.settle(flights[-1], now=True)
            return "deadline"
        finally:
            for last in flights[-1:]:
                last.goal_of -= 1
        return ""

    def leave(self, flights: Sequence[Flight]) -> None:
        """Wait for these no longer; once by everyone who began."""
        for flight in flights:
            flight.waiting -= 1
            if flight.expects_more:
                flight.expects_more = False
                self._lander.settle(flight)
            if not flight.waiting and flight.stage is Stage.QUEUED:
                self._abandon(flight)
            elif not flight.waiting and flight.stage is Stage.ENDED:
                self._lander.unpin(flight)

    def close(self) -> None:
        """Give up what is not being read yet."""
        for queue in self._queues:
            for flight in list(queue):
                self._abandon(flight)

    async def settled(self) -> None:
        """Wait until nothing is on its way and no device writes to a slot of ours."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def leases(self, space: Residents) -> list[int]:
        """Read and write leases held on a namespace."""
        return [lease for lease, owner in self._lander.held.items() if owner is space]

    def _join(self, keys: Sequence[bytes]) -> tuple[list[Flight], int]:
        """The flights under way that bring a leading part of these blocks, one right behind the other, and how many
        that is. What is behind a flight that fell short will not land: it is brought anew."""
        flights: list[Flight] = []
        at = 0
        while at < len(keys) and (flight := self._flights.get(keys[at])) is not None:
            if flight.previous is not flights[-1] if flights else _in_vain(flight):
                break  # what is behind one that can be joined can be, too
            flights.append(flight)
            while at < len(keys) and self._flights.get(keys[at]) is flight:
                at += 1
        return flights, at

    def _launch(
        self,
        space: Residents,
        tokens: bytes,
        match: Match,
        source: Source,
        first: int,
        previous: Flight | None,
        most: int | None,
    ) -> tuple[list[Flight], str]:
        """Queue flights, `most` at most, for as many of blocks first .. source.end-1 as there is room for; if these
        are not all, "full" or "quota"."""
        slot_bytes = space.size_class.slot_bytes
        step = max(1, FLIGHT_BYTES // slot_bytes)
        wanted = min(source.end - first, (self._max_bytes - self._bytes) // slot_bytes)
        if most is not None:
            wanted = min(wanted, most * step)
        space.pin(match)
        given, short = self._room.make(space, max(wanted, 0))
        flights: list[Flight] = []
        names = space.names_of(tokens, match, first + given)
        for start in range(first, first + given, step):
            end = min(start + step, first + given)
            space.pin(match)
            slots = space.size_class.take(end - start)
            on_way = start - len(match)
            part = names[on_way : end - len(match)]
            lease = space.write(next(self._lease_ids), tokens, match, slots, on_way=on_way, names=part)
            self._lander.held[lease.id] = space
            before = previous
            previous = Flight(space, source, lease, start, source.keys(start, end), before)
            if before is not None:
                before.followers.append(previous)
            flights.append(previous)
            self._flights.update(dict.fromkeys(previous.keys, previous))
            self._queues[1].append(previous)
            self._bytes += (end - start) * slot_bytes
        space.unpin(match)
        return flights, short or "full"

    def _hurry(self, flight: Flight) -> None:
        if not flight.urgent:
            flight.urgent = True
            if flight.stage is Stage.QUEUED:
                self._queues[1].remove(flight)
                self._queues[0].append(flight)

    def _pump(self) -> None:
        """Start queued flights while their tiers can take them, urgent ones first."""
        for queue in self._queues:
            for flight in list(queue):
                if self._reading[flight.source.name] < MAX_READING:
                    queue.remove(flight)
                    flight.stage = Stage.READING
                    self._reading[flight.source.name] += 1
                    self._spawn(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        try:
            with flight.span.child(flight.source.name, blocks=len(flight.keys)):
                answers = await flight.source.get(_wanted(flight), deadline_s=READ_DEADLINE_S)
        except Exception:
            log.exception("the %s tier failed in a way it should not", flight.source.name)
            answers: list[Got] = [Failed("error")] * len(flight.keys)
        self._reading[flight.source.name] -= 1
        self._pump()
        flight.answers = answers
        self._lander.settle(flight)

    def _abandon(self, flight: Flight) -> None:
        for queue in self._queues:
            if flight in queue:
                queue.remove(flight)
        self._lander.abandon(flight)

    def _ended(self, flight: Flight) -> None:
        self._bytes -= len(flight.keys) * flight.space.size_class.slot_bytes
        for key in flight.keys:
            if self._flights.get(key) is flight:  # else another one brings it by now
                del self._flights[key]

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _in_vain(flight: Flight) -> bool:
    """Whether something above it has fallen short."""
    before = flight.previous
    while before is not None and not before.reason:
        before = before.previous
    return before is not None


def _wanted(flight: Flight) -> list[Wanted]:
    space, lease, size = flight.space, flight.lease, flight.space.block_token_bytes
    block_bytes = space.namespace.layout.block_bytes
    parents = [flight.source.above(flight.first), *flight.keys[:-1]]
    return [
        Wanted(
            space.fingerprint,
            key,
            parent,
            lease.tokens[ordinal * size : (ordinal + 1) * size],
            block_bytes,
            space.view.block(slot),
            lease.tokens,
            ordinal,
        )
        for ordinal, (key, parent, slot) in enumerate(
            zip(flight.keys, parents, lease.slots.tolist(), strict=True), flight.first
        )
    ]
