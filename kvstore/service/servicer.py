"""The gRPC edge of a Store: KVStore's calls. Lives on the Store's loop.

Each Session stream is one Store session, closed in the same turn in which the stream ends or breaks. What a method
raises is logged and answered with INTERNAL by the edge around all of them (security/edge.py).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Protocol, cast

import grpc
import grpc.aio

from ...proto import FieldError
from ...proto import kv_pb2 as pb
from ..errors import SessionRefused
from ..events.feed import Feed, FeedFull
from ..events.stream import Streams
from ..scores import BadScore, Scores
from ..security.edge import identity_of
from ..security.identity import LOCAL
from ..security.limits import check
from ..session import Session as StoreSession
from ..store import Store
from ..text import Texts
from . import frames, keeping, tenants
from .insight import InsightCalls
from .keeping import BadRequest
from .report import status_reply
from .stream import MAX_DEADLINE_S, SessionStream
from .trace_feed import TraceFeed

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 5.0

Context = grpc.aio.ServicerContext[pb.ClientFrame, pb.ServerFrame]
FetchContext = grpc.aio.ServicerContext[pb.FetchRequest, pb.FetchPart]
EventsContext = grpc.aio.ServicerContext[pb.EventsRequest, pb.EventBatch]
TraceContext = grpc.aio.ServicerContext[pb.TraceRequest, pb.TraceEvent]


class Fetcher(Protocol):
    """Answers Fetch."""

    def fetch(self, request: pb.FetchRequest) -> AsyncGenerator[pb.FetchPart]: ...


class Servicer(InsightCalls):
    """Serves `store`, whose arena lies at `arena_path`; `boot_id` tells this start from any other."""

    def __init__(
        self,
        store: Store,
        arena_path: str,
        boot_id: bytes,
        clock: Callable[[], float] = time.monotonic,
        *,
        node: str = "",
        texts: Texts | None = None,
    ) -> None:
        super().__init__(store, texts or Texts())
        self._arena_path, self._boot_id, self._clock = arena_path, boot_id, clock
        self._started = clock()
        self._draining = asyncio.Event()
        self._streams: set[SessionStream] = set()
        self.fetching: Fetcher | None = None
        """What answers Fetch; None while this is no node of a cluster."""
        self.scores = Scores(store.holdings, node)
        self.streams = Streams(Feed(store, store.holdings.hbm, node=node, epoch=boot_id), store.holdings.label_of)

    async def drain(self, grace_s: float) -> None:
        """Let acquires in flight be answered, for at most `grace_s`; then end every stream, new ones too."""
        streams = [asyncio.ensure_future(stream.idle()) for stream in self._streams]
        if streams:
            _, late = await asyncio.wait(streams, timeout=grace_s)
            for task in late:
                task.cancel()
        self._draining.set()
        self.streams.close()

    async def Session(self, request_iterator: AsyncIterator[pb.ClientFrame], context: Context) -> None:
        """One session: Open, then requests until either side ends the stream."""

        async def read() -> pb.ClientFrame | None:
            frame = cast(object, await context.read())
            return frame if isinstance(frame, pb.ClientFrame) else None  # else grpc.aio.EOF

        try:
            async with asyncio.timeout(OPEN_TIMEOUT_S):
                first = await read()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "open: nothing came")
        if first is None:
            return
        if not first.HasField("open"):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "open: must be the first frame")
        try:
            session = self._open(first.open, identity_of(context).tenant)
        except (SessionRefused, FieldError) as error:
            log.warning("refused %s (%s): %s", first.open.client, context.peer(), error)
            await context.write(pb.ServerFrame(id=first.id, refused=_refused(error)))
            return
        try:
            log.info("session %d opened by %s", session.id, first.open.client)
            opened = pb.Opened(
                session=session.id,
                boot_id=self._boot_id,
                package_version=frames.PACKAGE_VERSION,
                arena_path=self._arena_path,
            )
            await context.write(pb.ServerFrame(id=first.id, opened=opened))
            await self._run(SessionStream(session, read, context.write))
        finally:
            session.close()
            log.info("session %d closed", session.id)

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.StatusReply:
        """What the store holds; with `check`, after recounting it."""
        return self.status(self._recount() if request.check else "")

    async def Clear(self, request: pb.ClearRequest, context: Context) -> pb.ClearReply:
        """Drop blocks for good."""
        try:
            return await keeping.clear(self._store, request)
        except BadRequest as error:
            await context.abort(error.code, str(error))

    async def SetQuota(self, request: pb.QuotaRequest, context: Context) -> pb.QuotaReply:
        """Set what a tenant may use, and what others cannot take."""
        try:
            return tenants.set_quota(self._store, request)
        except BadRequest as error:
            await context.abort(error.code, str(error))

    async def Retain(self, request: pb.RetainRequest, context: Context) -> pb.RetainReply:
        """Set what blocks are worth keeping."""
        try:
            return await keeping.retain(self._store, request)
        except BadRequest as error:
            await context.abort(error.code, str(error))

    async def Warm(self, request: pb.WarmRequest, context: Context) -> pb.WarmReply:
        """Bring a prompt up to DRAM."""
        try:
            return await keeping.warm(self._store, request)
        except BadRequest as error:
            await context.abort(error.code, str(error))

    async def Flush(self, request: pb.FlushRequest, context: Context) -> pb.FlushReply:
        """Write what waits for the lower tier, and sync it."""
        if not 0 <= request.deadline_s <= MAX_DEADLINE_S:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"deadline_s: must be between 0 and {MAX_DEADLINE_S:.0f}"
            )
        pending = await self._store.flush(request.deadline_s)
        return pb.FlushReply(done=not pending, pending_blocks=pending)

    async def Trace(self, request: pb.TraceRequest, context: TraceContext) -> None:
        """Salted hashes of what is asked for, until the reader leaves or the server stops."""
        feed = TraceFeed(self._store, self._clock)
        stopping = asyncio.ensure_future(self._draining.wait())
        coming: asyncio.Future[pb.TraceEvent] | None = None
        try:
            while not self._draining.is_set():
                coming = asyncio.ensure_future(feed.next())
                await asyncio.wait({coming, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    return
                await context.write(coming.result())
        finally:
            if coming is not None:
                coming.cancel()
            stopping.cancel()
            feed.close()

    async def Fetch(self, request: pb.FetchRequest, context: FetchContext) -> None:
        """Lend blocks to another node."""
        if self.fetching is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this store is in no cluster")
        who = identity_of(context)
        if who is not LOCAL:
            request.node = who.name  # what it may borrow at a time is counted by who it is, not by who it says it is
        async with contextlib.aclosing(self.fetching.fetch(request)) as parts:
            async for part in parts:
                await context.write(part)

    async def Events(self, request: pb.EventsRequest, context: EventsContext) -> None:
        """What comes and goes, until the reader leaves or the server stops."""
        who = identity_of(context)
        fault = self.streams.refuses(request, who)
        if fault:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault)
        try:
            async with contextlib.aclosing(self.streams.events(request, self.sight(who))) as batches:
                async for batch in batches:
                    await context.write(batch)
        except FeedFull as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))

    async def Score(self, request: pb.ScoreRequest, context: Context) -> pb.ScoreReply:
        """How much of a prompt the nodes and the engines have."""
        try:
            return await self.scores.score(request, self.sight(identity_of(context)))
        except BadScore as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    def status(self, check_error: str = "") -> pb.StatusReply:
        """The reply to Status, for /status.json too."""
        reply = status_reply(self._store.stats())
        reply.boot_id = self._boot_id
        reply.package_version = frames.PACKAGE_VERSION
        reply.uptime_s = self._clock() - self._started
        reply.time_s = time.time()
        reply.check_error = check_error
        self.describe_handover(reply)
        return reply

    def _open(self, opening: pb.Open, tenant: str) -> StoreSession:
        if not frames.MIN_WIRE_VERSION <= opening.wire_version <= frames.WIRE_VERSION:
            ours, theirs = str(frames.WIRE_VERSION), str(opening.wire_version)
            raise SessionRefused(
                "wire_version",
                f"the sidecar (kvterrace {frames.PACKAGE_VERSION}) speaks version {ours}, "
                f"the client (kvterrace {opening.package_version or 'unknown'}) version {theirs}",
                ours=ours,
                theirs=theirs,
            )
        check(opening)
        namespace = frames.unpack_namespace(opening)
        return self._store.open_session(
            namespace, client=opening.client, fingerprint=opening.fingerprint, tenant=tenant
        )

    async def _run(self, stream: SessionStream) -> None:
        """Serve until the stream ends, or a stop ends it."""
        self._streams.add(stream)
        serving = asyncio.ensure_future(stream.run())
        stopping = asyncio.ensure_future(self._draining.wait())
        try:
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(stream)
            serving.cancel()
            stopping.cancel()
            await asyncio.wait({serving, stopping})
            if not serving.cancelled() and serving.exception() is not None:
                log.warning("a session's stream broke: %r", serving.exception())

    def _recount(self) -> str:
        try:
            self._store.check()
        except AssertionError as error:
            log.error("the recount found a fault", exc_info=error)
            return str(error) or "a count is wrong"
        return ""


def _refused(error: SessionRefused | FieldError) -> pb.Refused:
    if isinstance(error, SessionRefused):
        return pb.Refused(field=error.field, message=error.message, ours=error.ours, theirs=error.theirs)
    return pb.Refused(field=error.field, message=error.message)
