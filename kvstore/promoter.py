"""Promoter: brings blocks up from the lower tier into arena slots, for requests that wait and for some that will come.

A run of wanted blocks is cut into flights of a few MiB. A block is in one flight at most: whoever wants it too joins
that one. Flights read side by side and land in order, each under the blocks that the one before has landed. A landed
flight keeps its blocks pinned until all who waited for it have taken their leases or left; one that nobody waits for
any more is given up unless it reads already, and then its blocks are kept like any others. Used on the store's loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from ..radix import Match
from .depot import Depot
from .flight import Flight, Stage
from .residents import ABSENT, WRITTEN, Residents
from .room import Room
from .stats import Counters
from .tiers import Failed, Got, Hit, Wanted

log = logging.getLogger(__name__)

FLIGHT_BYTES = 8 << 20
MAX_READING = 8  # flights at once: more would only queue in the tier, where a request could not overtake a prefetch
READ_DEADLINE_S = 10.0  # of a flight; those who wait have deadlines of their own


class Promoter:
    """max_bytes: what slots of flights may take at once. exclusive: what has been brought up leaves the lower tier, as
    far as nothing there hangs below it."""

    def __init__(
        self,
        depot: Depot,
        room: Room,
        counters: Counters,
        lease_ids: Iterator[int],
        *,
        max_bytes: int,
        exclusive: bool = False,
    ) -> None:
        self._depot = depot
        self._room = room
        self._counters = counters
        self._lease_ids = lease_ids
        self._max_bytes = max_bytes
        self._exclusive = exclusive
        self._bytes = 0
        self._flights: dict[bytes, Flight] = {}  # block key -> what brings it
        self._queues: tuple[deque[Flight], deque[Flight]] = (deque(), deque())  # urgent ones, others
        self._reading = 0
        self._held: dict[int, Residents] = {}  # leases of ours, by id
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(
        self, space: Residents, tokens: bytes, match: Match, below: Match, *, urgent: bool
    ) -> tuple[list[Flight], str]:
        """Get blocks len(match) .. len(below)-1 of `tokens` on their way. Returns the flights that bring them, in
        order, each joined until leave(), and "full" when there is no room in DRAM for all of them."""
        catalog = self._depot.of(space.fingerprint)
        assert catalog is not None
        keys = catalog.keys(below.blocks[len(match) :])
        flights, at = self._join(keys)
        reason = ""
        if at < len(keys):
            fresh = self._launch(space, tokens, match, below, len(match) + at, flights[-1] if flights else None)
            reason = "" if at + sum(len(each.keys) for each in fresh) == len(keys) else "full"
            flights += fresh
        for flight in flights:
            flight.waiting += 1
            if urgent:
                self._hurry(flight)
        self._pump()
        return flights, reason

    async def wait(self, flights: Sequence[Flight], deadline_s: float) -> str:
        """Until all have landed, one has fallen short, or the deadline; "" or why it is not all."""
        end = asyncio.get_running_loop().time() + deadline_s
        for flight in flights:
            if flight.stage is not Stage.ENDED:
                try:
                    async with asyncio.timeout_at(end):
                        await flight.ended.wait()
                except TimeoutError:
                    return "deadline"
            if flight.reason:
                return flight.reason
        return ""

    def leave(self, flights: Sequence[Flight]) -> None:
        """Wait for these no longer; once by everyone who began."""
        for flight in flights:
            flight.waiting -= 1
            if not flight.waiting and flight.stage is Stage.QUEUED:
                self._abandon(flight)
            elif not flight.waiting and flight.stage is Stage.ENDED:
                self._unpin(flight)

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
        return [lease for lease, owner in self._held.items() if owner is space]

    def _join(self, keys: Sequence[bytes]) -> tuple[list[Flight], int]:
        """The flights under way that bring a leading part of these blocks, and how many that is."""
        flights: list[Flight] = []
        at = 0
        while at < len(keys) and (flight := self._flights.get(keys[at])) is not None:
            flights.append(flight)
            while at < len(keys) and self._flights.get(keys[at]) is flight:
                at += 1
        return flights, at

    def _launch(
        self, space: Residents, tokens: bytes, match: Match, below: Match, first: int, previous: Flight | None
    ) -> list[Flight]:
        """Queue flights for as many of blocks first .. len(below)-1 as there is room for."""
        slot_bytes = space.size_class.slot_bytes
        wanted = min(len(below) - first, (self._max_bytes - self._bytes) // slot_bytes)
        space.pin(match)
        given = self._room.make(space.size_class, max(wanted, 0))
        catalog = self._depot.of(space.fingerprint)
        assert catalog is not None
        flights: list[Flight] = []
        step = max(1, FLIGHT_BYTES // slot_bytes)
        names = space.names_of(tokens, match, first + given)
        for start in range(first, first + given, step):
            end = min(start + step, first + given)
            space.pin(match)
            slots = space.size_class.take(end - start)
            on_way = start - len(match)
            part = names[on_way : end - len(match)]
            lease = space.write(next(self._lease_ids), tokens, match, slots, on_way=on_way, names=part)
            self._held[lease.id] = space
            blocks = below.blocks[start:end]
            previous = Flight(
                space,
                catalog,
                lease,
                blocks,
                keys=catalog.keys(blocks),
                above_key=catalog.parent_key(below, start),
                retentions=catalog.index.retention(blocks),
                previous=previous,
            )
            flights.append(previous)
            self._flights.update(dict.fromkeys(previous.keys, previous))
            self._queues[1].append(previous)
            self._bytes += (end - start) * slot_bytes
        space.unpin(match)
        return flights

    def _hurry(self, flight: Flight) -> None:
        if not flight.urgent:
            flight.urgent = True
            if flight.stage is Stage.QUEUED:
                self._queues[1].remove(flight)
                self._queues[0].append(flight)

    def _pump(self) -> None:
        """Start queued flights while the tier can take them, urgent ones first."""
        for queue in self._queues:
            while queue and self._reading < MAX_READING:
                flight = queue.popleft()
                flight.stage = Stage.READING
                self._reading += 1
                self._spawn(self._fly(flight))

    async def _fly(self, flight: Flight) -> None:
        try:
            answers = await self._depot.get(_wanted(flight), deadline_s=READ_DEADLINE_S)
        except Exception:
            log.exception("the %s tier failed in a way it should not", self._depot.name)
            answers: list[Got] = [Failed("error")] * len(flight.keys)
        self._reading -= 1
        self._pump()
        if flight.previous is not None:
            await flight.previous.ended.wait()
        self._land(flight, answers)

    def _land(self, flight: Flight, answers: Sequence[Got]) -> None:
        """Make the leading blocks that came visible, pin them for those who wait, free the other slots."""
        lost = flight.previous.reason if flight.previous is not None else ""
        hits = [] if lost else _leading_hits(answers)
        for answer in answers[len(hits) :]:
            if not isinstance(answer, Hit):
                self._count_failure(answer)
        if len(hits) < len(answers):
            lost = lost or _why(answers[len(hits)])
            self._give_back(flight, len(hits), answers)
            self._forget_lost(flight, answers)
        if hits:
            lost = self._commit(flight, [hit.checksum for hit in hits]) or lost
        self._end(flight, lost)

    def _commit(self, flight: Flight, checksums: list[int]) -> str:
        space, lease = flight.space, flight.lease
        void = lease.void
        del self._held[lease.id]
        fresh = space.commit(lease, checksums)
        if fresh is None:
            return "cleared" if void else "evicted"
        index, rows = space.index, slice(len(checksums) - len(fresh), len(checksums))
        index.col("below")[fresh] = ABSENT if self._exclusive else WRITTEN
        index.col("prefetched")[fresh] = not flight.urgent
        said = flight.retentions
        index.retain(fresh, priority=said.priority[rows], ttl_s=said.ttl_s[rows], pinned=said.pinned[rows])
        self._counters.promoted_blocks[self._depot.name] += len(fresh)
        if flight.waiting and flight.urgent:  # a prefetch pins nothing: its request may be long in coming
            flight.pin = next(self._lease_ids)
            self._held[flight.pin] = space
            space.read(flight.pin, index.match(lease.tokens), lease.first)
        if self._exclusive:
            self._spawn(self._depot.forget_tips(flight.catalog, lease.tokens, lease.first))
        return ""

    def _give_back(self, flight: Flight, good: int, answers: Sequence[Got]) -> None:
        """Free the slots of blocks that did not come, once no device writes to them any more."""
        space, lease = flight.space, flight.lease
        rest = space.split(lease, good, next(self._lease_ids)) if good else lease
        rest.void = True
        self._held[rest.id] = space
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
        del self._held[lease]
        space.end_write(space.writes[lease])

    def _forget_lost(self, flight: Flight, answers: Sequence[Got]) -> None:
        """What the tier says it does not have, or has damaged, leaves the catalog: it is not asked for twice."""
        for block, key, answer in zip(flight.blocks.tolist(), flight.keys, answers, strict=True):
            gone = answer.reason == "corrupt" if isinstance(answer, Failed) else not isinstance(answer, Hit)
            if gone:
                self._spawn(self._depot.forget(flight.catalog, block, key))
                return  # with all below it

    def _abandon(self, flight: Flight) -> None:
        for queue in self._queues:
            if flight in queue:
                queue.remove(flight)
        self._free(flight.space, flight.lease.id)
        self._end(flight, "cancelled")

    def _end(self, flight: Flight, reason: str) -> None:
        flight.stage, flight.reason = Stage.ENDED, reason
        self._bytes -= len(flight.keys) * flight.space.size_class.slot_bytes
        for key in flight.keys:
            del self._flights[key]
        flight.previous = None  # a chain of them would keep all that ever flew
        flight.ended.set()
        if not flight.waiting:
            self._unpin(flight)

    def _unpin(self, flight: Flight) -> None:
        if flight.pin:
            del self._held[flight.pin]
            flight.space.end_read(flight.space.reads[flight.pin])
            flight.pin = 0

    def _count_failure(self, answer: Got) -> None:
        self._counters.failed_loads[_why(answer)] += 1

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _wanted(flight: Flight) -> list[Wanted]:
    space, catalog, lease = flight.space, flight.catalog, flight.lease
    parents = [flight.above_key, *flight.keys[:-1]]
    return [
        Wanted(
            space.fingerprint,
            key,
            parent,
            catalog.tokens_at(lease.tokens, lease.first + place),
            catalog.block_bytes,
            space.view.block(slot),
        )
        for place, (key, parent, slot) in enumerate(zip(flight.keys, parents, lease.slots.tolist(), strict=True))
    ]


def _leading_hits(answers: Sequence[Got]) -> list[Hit]:
    hits: list[Hit] = []
    for answer in answers:
        if not isinstance(answer, Hit):
            break
        hits.append(answer)
    return hits


def _why(answer: Got) -> str:
    return answer.reason if isinstance(answer, Failed) else "evicted"
