"""PeerTier: another node as a Tier that can be read. For each run of blocks one Fetch, on one event loop.

Bytes come by the bulk channel when the peer offers it, straight into `into`, else behind the offer by gRPC. After a
failure of the bulk channel the same run is asked for again by gRPC, and for a while all others too. What came is hashed
in a thread. When `get` returns, nothing writes to `into` any more; hashing that is late only reads (see `until`).
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import xxhash

from ...proto import kv_pb2 as pb
from ..service.frames import WIRE_VERSION
from ..tiers import Failed, Got, Hit, Miss, Put, Record, Rejected, Usage, Wanted
from ..tiers.nvme.breaker import Breaker
from ..tracing import current
from .budget import Budget
from .bulk_client import BulkError
from .client import PeerClient, PeerError
from .counts import BULK, GRPC, FetchCounts
from .fetching import MAX_DEADLINE_S
from .patience import Call, Patience
from .runs import Run, runs_of

log = logging.getLogger(__name__)

IN_FLIGHT_BYTES = 128 << 20  # from one peer
TELL_S = 0.5  # what an answer about progress may take beyond its wait
BULK_SHARE = 0.6  # of the time that is left; what a channel that hangs leaves is for gRPC
_NONE = "none"  # no transfer began
_ANSWERS = {"deadline": "deadline", "protocol": "corrupt"}  # others: "io"


class Receiver(Protocol):
    """The bulk channel: see BulkClient."""

    async def receive(self, address: str, ticket: bytes, into: Sequence[memoryview], *, deadline_s: float) -> None: ...


class PeerTier:
    """client: the peer; closed with the tier. node: who asks, wire_version: in which version. bulk: shared by all
    peers; None = gRPC only. clock: of the breakers. The peer's opens after three runs in a row that failed, or one
    that took far longer than usual, and lets one through now and then."""

    name = "peer"

    def __init__(
        self,
        client: PeerClient,
        node: str,
        bulk: Receiver | None,
        counts: FetchCounts,
        *,
        clock: Callable[[], float] = time.monotonic,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
        wire_version: int = WIRE_VERSION,
        bulk_address: str = "",
    ) -> None:
        self.client = client
        self._wire_version = wire_version
        self._bulk_address = bulk_address
        self._node = node
        self._bulk = bulk
        self._counts = counts
        self._breaker = Breaker("fetches", clock)
        self._bulk_breaker = Breaker("bulk transfers", clock, threshold=1)
        self._budget = Budget(in_flight_bytes)
        self._patience = Patience(clock)
        self._jobs: set[asyncio.Task[list[Got]]] = set()
        self._closed = False

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        answers: list[Got] = [Miss() for _ in wanted]
        if self._closed:
            return answers
        loop = asyncio.get_running_loop()
        by = loop.time() + min(deadline_s, MAX_DEADLINE_S)
        jobs = {loop.create_task(self._bring(run, by)): run for run in runs_of(wanted)}
        self._jobs |= jobs.keys()
        try:
            if jobs:
                await asyncio.wait(jobs)
        finally:
            await _ended(jobs)
            self._jobs -= jobs.keys()
        for job, run in jobs.items():
            answers[run.at : run.at + len(run.blocks)] = _all(run, "io") if job.cancelled() else job.result()
        return answers

    async def progress(
        self, fingerprint: bytes, tokens: bytes, first: int, *, wait_s: float
    ) -> tuple[int, float] | None:
        """See following.Telling."""
        if not self.ready:
            return None
        request = pb.FetchRequest(
            wire_version=self._wire_version,
            fingerprint=fingerprint,
            tokens=tokens,
            first=first,
            deadline_s=wait_s + TELL_S,
            wait_s=wait_s,
            node=self._node,
        )
        try:
            async with asyncio.timeout(wait_s + TELL_S):
                async with self.client.fetch(request, timeout_s=wait_s + TELL_S) as answer:
                    offer = await answer.offer()
        except (PeerError, TimeoutError):
            return None
        blocks = len(tokens) // 4
        return min(offer.count, blocks), offer.computing_s if math.isfinite(offer.computing_s) else 0.0

    async def put(self, records: Sequence[Record], *, deadline_s: float) -> list[Put]:
        return [Rejected("closed" if self._closed else "disabled") for _ in records]

    async def drop(self, keys: Sequence[bytes]) -> list[bool]:
        return [False for _ in keys]

    def usage(self) -> Usage:
        return Usage(0, 0, 0)

    @property
    def ready(self) -> bool:
        """Whether it makes sense to ask now: it has not failed lately, and no call to it takes too long."""
        return not self._closed and self._breaker.ready and not self._patience.late

    def state(self) -> str:
        """What is wrong with the peer, for people; "" while nothing is known to be."""
        late = "a call takes longer than it should" if self._patience.late else ""
        return self._breaker.state() or late or self._bulk_breaker.state()

    @property
    def in_flight_bytes(self) -> int:
        return self._budget.taken_bytes

    async def close(self) -> None:
        """Gets under way are given up; their blocks are answered Failed("io")."""
        self._closed = True
        await _ended(set(self._jobs))
        await self.client.close()

    async def _bring(self, run: Run, by: float) -> list[Got]:
        call: Call | None = None
        if by <= asyncio.get_running_loop().time():
            return _all(run, "deadline")
        if not self._breaker.ready:
            return self._settled(run, "breaker", "breaker")
        if not await self._budget.take(run.size_bytes, by):
            return self._settled(run, "queue", "deadline")
        try:
            if not self._breaker.allow():
                return self._settled(run, "breaker", "breaker")
            with self._patience.call(run.size_bytes) as call:
                async with asyncio.timeout_at(by):
                    checksums = await self._receive(run, by)
            if not checksums:
                self._breaker.success()
                return self._settled(run, "empty", None)
            return await self._verify(run, checksums, by)
        except (PeerError, TimeoutError) as error:
            late = call is not None and call.late
            return self._trouble(run, error if isinstance(error, PeerError) else PeerError("deadline"), late=late)
        finally:
            self._budget.give(run.size_bytes)

    def _settled(self, run: Run, outcome: str, reason: str | None) -> list[Got]:
        self._counts.fetches[_NONE, outcome] += 1
        return [Miss() for _ in run.blocks] if reason is None else _all(run, reason)

    def _trouble(self, run: Run, error: PeerError, *, late: bool) -> list[Got]:
        """late: it took far longer than usual, and would again."""
        self._counts.fetches[_NONE, error.reason] += 1
        if error.reason == "busy":
            self._breaker.success()  # it is there, and will be less busy
        elif self._breaker.failure(str(error), sure=error.sure or (late and error.reason == "deadline")):
            log.warning("not fetching from the peer at %s for a while: %s", self.client.address, error)
        return _all(run, _ANSWERS.get(error.reason, "io"))

    async def _receive(self, run: Run, by: float) -> list[int]:
        """Bring what the peer has of the run, its first blocks; their checksums."""
        if self._bulk is not None and self._bulk_breaker.allow():
            try:
                return await self._ask(run, by, self._bulk)
            except BulkError as error:
                self._counts.fetches[BULK, error.reason] += 1
                if self._bulk_breaker.failure(error.reason, sure=True):
                    log.warning("no bulk transfers from the peer at %s for a while: %s", self.client.address, error)
        return await self._ask(run, by, None)

    async def _ask(self, run: Run, by: float, bulk: Receiver | None) -> list[int]:
        loop = asyncio.get_running_loop()
        left = by - loop.time()
        request = pb.FetchRequest(
            wire_version=self._wire_version,
            fingerprint=run.blocks[0].fingerprint,
            tokens=run.tokens,
            first=run.first,
            deadline_s=max(0.0, left),
            bulk=bulk is not None,
            node=self._node,
            traceparent=current().traceparent,
        )
        async with self.client.fetch(request, timeout_s=max(0.0, left)) as answer:
            offer = await answer.offer()
            checksums = run.checksums(offer)
            views, size_bytes = run.views(len(checksums)), len(checksums) * run.block_bytes
            if not offer.ticket:
                if views:
                    with self._counts.transfer(GRPC, size_bytes, loop.time):
                        await answer.read_into(views)
                return checksums
            if bulk is None:
                raise PeerError("protocol", "a ticket that was not asked for")
            with self._counts.transfer(
                BULK, size_bytes, loop.time
            ):  # the call stays open: its end would end the ticket
                left = BULK_SHARE * (by - loop.time())
                await bulk.receive(self._bulk_at(offer.bulk_address), offer.ticket, views, deadline_s=left)
            self._bulk_breaker.success()
            return checksums

    def _bulk_at(self, offered: str) -> str:
        """Where the bytes come from: who answers may not send this node to another host."""
        if self._bulk_address:
            return self._bulk_address
        if offered.rpartition(":")[0] != self.client.address.rpartition(":")[0]:
            raise PeerError("protocol", f"a bulk channel at {offered[:100]!r}, which is another host")
        return offered

    async def _verify(self, run: Run, checksums: list[int], by: float) -> list[Got]:
        """Hash what came; blocks behind it are Misses."""
        loop = asyncio.get_running_loop()
        hashing = loop.run_in_executor(None, _hash, run.views(len(checksums)))
        await asyncio.wait({hashing}, timeout=by - loop.time())
        if not hashing.done():
            until = asyncio.Event()
            hashing.add_done_callback(lambda _: until.set())
            return [Failed("deadline", until) for _ in run.blocks]
        pairs = zip(hashing.result(), checksums, strict=True)
        answers: list[Got] = [Hit(said) if found == said else Failed("corrupt") for found, said in pairs]
        corrupt = sum(isinstance(answer, Failed) for answer in answers)
        if corrupt:
            self._counts.corrupt_blocks += corrupt
            self._breaker.failure(f"{corrupt} blocks came damaged")
        else:
            self._breaker.success()
        return answers + [Miss() for _ in run.blocks[len(answers) :]]


def _all(run: Run, reason: str) -> list[Got]:
    return [Failed(reason) for _ in run.blocks]


def _hash(views: Sequence[memoryview]) -> list[int]:
    return [xxhash.xxh3_64_intdigest(view) for view in views]


async def _ended(jobs: "set[asyncio.Task[list[Got]]] | dict[asyncio.Task[list[Got]], Run]") -> None:
    """Cancel what runs, and wait until it has let go of the memory that it writes to."""
    again: asyncio.CancelledError | None = None
    for job in jobs:
        job.cancel()
    while running := [job for job in jobs if not job.done()]:
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError as error:
            again = error  # the memory comes first
    if again is not None:
        raise again
