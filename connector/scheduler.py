"""Scheduler side: the fetch cycles of all requests, with their leases, offers and deadlines. Copies nothing.

Called from the engine's thread, from the bridge's loop (answers of the store) and from copy threads (ends of loads);
one lock guards the table of cycles. A cycle is in the table exactly while it may still produce an event; a lease that
arrives for a cycle no longer there is given back at once.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b

from ..kvstore.placement import CostModel
from ..kvstore.types import Acquired, Origin, Wait
from .base import Delayed, LoadDone, Offer
from .link import Link, shorten
from .registration import Registration
from .worker import Job, LoadResult

# The store answers within this share of the deadline; the rest is for the way back. What it has by then is used.
STORE_SHARE = 0.8


class State(Enum):
    ACQUIRING = "acquiring"
    OFFERED = "offered"
    LOADING = "loading"


@dataclass(slots=True, eq=False)
class Cycle:
    """One request between its fetch and the end of it. `acquired` is set from OFFERED on, `job` while LOADING."""

    request_id: str
    skip: int
    wanted: int
    origin: Origin | None = None
    state: State = State.ACQUIRING
    acquired: Acquired | None = None
    offered: int = 0
    job: Job | None = None
    loading_since: float = 0.0


class SchedulerSide:
    """Decides what is offered and who holds which lease; see KVConnector for the contract of each call."""

    def __init__(self, link: Link, registration: Registration, cost: CostModel) -> None:
        """cost: what computing takes, as far as it is known; used on the loop."""
        self._link = link
        self._registration = registration
        self._cost = cost
        self._lock = threading.Lock()
        self._cycles: dict[str, Cycle] = {}
        self._closed = False

    def fetch(
        self, request_id: str, tokens: bytes, hbm_blocks: int, max_blocks: int, origin: Origin | None = None
    ) -> None:
        cycle = Cycle(request_id, hbm_blocks, max(0, max_blocks - hbm_blocks), origin)
        link = self._link
        with self._lock:
            busy = request_id in self._cycles
            if not busy:
                self._cycles[request_id] = cycle
        if busy:
            link.outbox.offer(Offer(request_id, 0, {}, "busy"))
            link.outbox.wake()
            return
        began, wanted = link.clock(), link.prefix(tokens, max_blocks)
        if cycle.wanted == 0:
            self._answer(cycle, None, "")
        elif self._closed or not link.attached:
            self._answer(cycle, None, "disconnected")
        elif link.limits.acquire_deadline_s == 0:
            self._answer(cycle, None, "deadline")
        elif not link.bridge.submit(lambda: self._acquire(cycle, wanted, began)):
            self._answer(cycle, None, "busy")

    def begin_load(self, request_id: str, blocks: int) -> Cycle | None:
        """Turn a standing offer into a load of its first `blocks` blocks; None if there is no such offer."""
        with self._lock:
            cycle = self._cycles.get(request_id)
            if cycle is None or cycle.state is not State.OFFERED or blocks > cycle.offered:
                return None
            cycle.state = State.LOADING
            cycle.loading_since = self._link.clock()
            return cycle

    def end_load(self, cycle: Cycle, result: LoadResult) -> None:
        """The pages are no longer written: report, then give the lease back with what was found corrupt."""
        link, acquired = self._link, cycle.acquired
        assert acquired is not None
        tiers = shorten(acquired.tiers, result.blocks_ok * link.layout.block_tokens)
        compute_s = acquired.compute_s * result.blocks_ok / len(acquired.slots)
        with self._lock:
            del self._cycles[cycle.request_id]
            link.outbox.load_done(
                LoadDone(cycle.request_id, result.blocks_ok, tiers, result.reason, compute_s),
                loaded_bytes=result.blocks_ok * link.layout.block_bytes,
                seconds=link.clock() - cycle.loading_since,
                corrupt_blocks=len(result.corrupt),
            )
        link.give_back(acquired.lease, result.corrupt)
        link.outbox.wake()

    def decline(self, request_id: str) -> None:
        with self._lock:
            cycle = self._cycles.get(request_id)
            if cycle is None or cycle.state is not State.OFFERED:
                return
            del self._cycles[request_id]
        self._give_back(cycle.acquired)

    def cancel(self, request_id: str) -> None:
        self._abandon(request_id)
        with self._lock:
            self._link.outbox.drop_offers(request_id)
            cycle = self._cycles.get(request_id)
            if cycle is None:
                return
            if cycle.state is State.LOADING:
                if cycle.job is not None:
                    cycle.job.cancel()
                return
            del self._cycles[request_id]
        self._give_back(cycle.acquired)

    def close(self) -> None:
        """Waiting fetches are answered, standing offers dropped; loads end by themselves."""
        self._closed = True
        with self._lock:
            waiting = [c for c in self._cycles.values() if c.state is State.ACQUIRING]
            standing = [c for c in self._cycles.values() if c.state is State.OFFERED]
            for cycle in standing:
                del self._cycles[cycle.request_id]
        for cycle in waiting:
            self._answer(cycle, None, "disconnected")
        for cycle in standing:
            self._give_back(cycle.acquired)

    def in_flight(self) -> tuple[int, int]:
        """(fetches waiting for the store, loads being copied)."""
        with self._lock:
            states = [cycle.state for cycle in self._cycles.values()]
        return states.count(State.ACQUIRING), states.count(State.LOADING)

    def _patience_s(self, cycle: Cycle) -> float:
        """How long the answer to a fetch is worth waiting for: no longer than its bytes may take, nor, beyond the base
        that is always granted, than computing would."""
        layout, limits = self._link.layout, self._link.limits
        compute_s = self._cost.compute_s(cycle.skip * layout.block_tokens, cycle.wanted * layout.block_tokens)
        most_s = limits.fetch_s(cycle.wanted * layout.block_bytes)
        return min(most_s, limits.acquire_deadline_s + compute_s) if compute_s else most_s

    async def _acquire(self, cycle: Cycle, tokens: bytes, began: float) -> None:
        """Ask the store, again as long as it says that waiting pays. Each answer has the deadline of a first one, so
        that a store that hangs meanwhile costs no more than one that hung at once."""
        link = self._link
        acquired: Acquired | None = None
        reason = "disconnected"  # what a task that the closing bridge cancels answers
        wait = Wait(ticket_of(cycle.request_id)) if link.limits.compute_wait_s else None
        since = began
        try:
            reason = await self._registration.ready(self._patience_s(cycle) - (link.clock() - began))
            while not reason:
                left = since + self._patience_s(cycle) - link.clock()
                if left <= 0:
                    reason = "deadline"
                    break
                patience_s = left * STORE_SHARE
                call = link.client.acquire(
                    tokens, skip=cycle.skip, deadline_s=patience_s, wait=wait, origin=cycle.origin
                )
                acquired, reason = await link.bridge.ask(call, left, self._too_late)
                if acquired is None or acquired.wait is None or not self._delay(cycle):
                    break
                since = link.clock()
                wait = acquired.wait if since - began < link.limits.compute_wait_s else None
        finally:
            self._answer(cycle, acquired, reason)

    def _delay(self, cycle: Cycle) -> bool:
        """Tell the engine that it takes longer; False: nobody wants it any more."""
        link = self._link
        with self._lock:
            standing = self._cycles.get(cycle.request_id) is cycle and not self._closed
            if standing:
                link.outbox.delayed(Delayed(cycle.request_id, self._patience_s(cycle)))
        if standing:
            link.outbox.wake()
        return standing

    def _abandon(self, request_id: str) -> None:
        """The request computes no more of its prompt."""
        link = self._link
        if link.limits.compute_wait_s and link.attached:

            async def tell() -> None:
                await link.bridge.ask(link.client.abandon(ticket_of(request_id)), link.limits.save_deadline_s, None)

            link.bridge.follow_up(tell)

    async def _too_late(self, acquired: Acquired) -> None:
        self._give_back(acquired)

    def _answer(self, cycle: Cycle, acquired: Acquired | None, reason: str) -> None:
        """The one place where a fetch gets its Offer, if it still wants one, and otherwise its lease goes back."""
        link = self._link
        blocks, miss = 0, None
        if acquired is not None:
            reason, miss = acquired.reason, acquired.miss
            if acquired.arena is not None and acquired.first == cycle.skip:
                blocks = min(len(acquired.slots), cycle.wanted)
        if blocks == cycle.wanted:
            reason, miss = "", None
        with self._lock:
            standing = self._cycles.get(cycle.request_id) is cycle and cycle.state is State.ACQUIRING
            if standing:
                if blocks:
                    assert acquired is not None
                    cycle.state, cycle.acquired, cycle.offered = State.OFFERED, acquired, blocks
                    tiers = shorten(acquired.tiers, blocks * link.layout.block_tokens)
                else:
                    del self._cycles[cycle.request_id]
                    tiers = {}
                link.outbox.offer(Offer(cycle.request_id, blocks, tiers, reason, miss))
        if standing:
            link.outbox.wake()
        if not (standing and blocks):
            self._give_back(acquired)
        if not standing and acquired is not None:
            self._abandon(cycle.request_id)

    def _give_back(self, acquired: Acquired | None) -> None:
        if acquired is not None and acquired.lease:
            self._link.give_back(acquired.lease)


def ticket_of(request_id: str) -> int:
    """The number by which the store knows a request: the same whenever it is asked for, so that nothing is kept."""
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "big")
