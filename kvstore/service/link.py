"""One live session stream seen from the client: requests out, answers matched to them by id.

Lives on one event loop. Ends once, for good: when the stream breaks, when the server stops answering, or by `close`;
every request then pending ends as LinkBroken. What the server granted to a caller that is no longer there (cancelled,
timed out) goes back as soon as the late answer comes.
"""

import asyncio
import contextlib
import itertools
import logging
from dataclasses import dataclass

import grpc.aio

from ...proto import kv_pb2 as pb
from ..errors import KvterraceError
from ..security.credentials import Credentials
from .channel import MAX_MESSAGE_BYTES, open_channel
from .frames import FrameError
from .stub import SessionCall, session_call

log = logging.getLogger(__name__)

MAX_IN_FLIGHT = 4096
MAX_FRAME_BYTES = MAX_MESSAGE_BYTES - 64  # a larger one would cost the whole session; the id is yet to come
CLOSE_S = 0.5
HOLD_S = 0.001  # what wants no answer waits so long for a request to ride along with
MAX_HELD = 256
LARGE_BYTES = 2048  # more than that does not ride along


class LinkBroken(KvterraceError):
    """The stream is gone, or could not be opened."""


class LinkTimeout(KvterraceError):
    """No answer in time. The stream may still live."""


class LinkBusy(KvterraceError):
    """So many requests are unanswered that another one would only wait."""


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """When a silent server counts as gone."""

    open_timeout_s: float = 2.0
    timeouts_to_break: int = 3


class Link:
    """An open session. Built by `Link.open`; `opened` is what the server said to it."""

    def __init__(self, channel: grpc.aio.Channel, call: SessionCall, opened: pb.Opened, limits: LinkLimits) -> None:
        self.opened = opened
        self.ended = asyncio.Event()
        self.why = ""
        self._channel, self._call, self._limits = channel, call, limits
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[pb.ServerFrame]] = {}
        self._unanswered = 0  # requests without an answer yet, the callers of some having left
        self._silent = 0  # time-outs since the server last said something
        self._outbox: asyncio.Queue[pb.ClientFrame] = asyncio.Queue()
        self._held: list[pb.ClientFrame] = []  # posted and not yet sent
        self._tasks = [self._loop.create_task(self._write()), self._loop.create_task(self._read())]

    @classmethod
    async def open(
        cls, address: str, opening: pb.Open, limits: LinkLimits, credentials: Credentials | None = None
    ) -> "Link | pb.Refused":
        """Dial and open a session. LinkBroken when nobody answers in time; a refusal is a result."""
        channel = open_channel(address, credentials)
        try:
            async with asyncio.timeout(limits.open_timeout_s):
                call = session_call(channel)
                await call.write(pb.ClientFrame(open=opening))
                answer = await call.read()
            if not isinstance(answer, pb.ServerFrame):
                raise LinkBroken(f"{address} ended the session at once")
            if answer.HasField("opened"):
                return cls(channel, call, answer.opened, limits)
            await channel.close()
            return answer.refused
        except BaseException as error:
            await channel.close()
            if isinstance(error, grpc.aio.AioRpcError):
                raise LinkBroken(f"{address}: {error.details() or error.code().name}") from None
            if isinstance(error, TimeoutError):
                raise LinkBroken(f"{address} does not answer") from None
            if isinstance(error, asyncio.InvalidStateError):
                raise LinkBroken(f"{address} broke the connection") from None
            raise

    async def request(self, frame: pb.ClientFrame, timeout_s: float) -> pb.ServerFrame:
        """Send and await the answer. LinkTimeout, LinkBroken, LinkBusy or FrameError instead of it."""
        if self.ended.is_set():
            raise LinkBroken("the session has ended")
        if frame.ByteSize() > MAX_FRAME_BYTES:
            raise FrameError("tokens", f"{frame.ByteSize()} bytes are above the {MAX_FRAME_BYTES} of a frame")
        # A commit is never refused: it is bounded by what was reserved, and refusing it would waste what was written.
        if self._unanswered >= MAX_IN_FLIGHT and not frame.HasField("commit"):
            raise LinkBusy(f"{self._unanswered} requests are unanswered")
        frame.id = next(self._ids)
        answer: asyncio.Future[pb.ServerFrame] = self._loop.create_future()
        self._pending[frame.id] = answer
        self._unanswered += 1
        self._send(frame)
        timer = self._loop.call_later(timeout_s, _expire, answer)
        try:
            return await answer
        except LinkTimeout:
            self._count_silence()
            raise
        except asyncio.CancelledError:
            # Answered in the same turn of the loop as it was cancelled: the caller never sees this grant.
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                self._give_back(answer.result())
            raise
        finally:
            timer.cancel()
            self._pending.pop(frame.id, None)

    def post(self, frame: pb.ClientFrame) -> None:
        """Send what wants no answer, in order with the requests, with the next of them or HOLD_S later; what is large
        goes at once. Lost when the session ends, as all it held is, or when no frame can hold it."""
        if self.ended.is_set():
            return
        size = frame.ByteSize()
        if size > LARGE_BYTES:
            if size <= MAX_FRAME_BYTES - MAX_HELD * LARGE_BYTES:
                self._send(frame)
            return
        self._held.append(frame)
        if len(self._held) == 1:
            self._loop.call_later(HOLD_S, self._flush)
        elif len(self._held) >= MAX_HELD:
            self._flush()

    async def close(self) -> None:
        """Say goodbye and end. Safe to call again."""
        if not self.ended.is_set():
            self._send(pb.ClientFrame(goodbye=pb.Goodbye()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended.wait(), CLOSE_S)
        self.abandon("closed")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    def abandon(self, why: str) -> None:
        """End at once: every pending request becomes LinkBroken."""
        if self.ended.is_set():
            return
        self.why = why
        self.ended.set()
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(LinkBroken(why))

    def _flush(self) -> None:
        if self._held and not self.ended.is_set():
            self._send(pb.ClientFrame())

    def _send(self, frame: pb.ClientFrame) -> None:
        frame.before.extend(self._held)
        self._held.clear()
        self._outbox.put_nowait(frame)

    async def _write(self) -> None:
        # The one writer: gRPC allows one write at a time, and a caller cancelled inside it would cancel the stream.
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self.abandon(_why(error))

    async def _read(self) -> None:
        try:
            while True:
                frame = await self._call.read()
                if not isinstance(frame, pb.ServerFrame):
                    self.abandon("the server ended the session")
                    return
                self._unanswered -= 1
                self._silent = 0
                answer = self._pending.pop(frame.id, None)
                if answer is not None and not answer.done():
                    answer.set_result(frame)
                else:
                    self._give_back(frame)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            self.abandon(_why(error))

    def _give_back(self, frame: pb.ServerFrame) -> None:
        """Return what `frame` grants to a caller that has left."""
        if frame.HasField("acquired") and frame.acquired.lease:
            self.post(pb.ClientFrame(release=pb.Release(lease=frame.acquired.lease)))
        elif frame.HasField("reserved") and frame.reserved.lease:
            self.post(pb.ClientFrame(abort=pb.Abort(lease=frame.reserved.lease)))

    def _count_silence(self) -> None:
        self._silent += 1
        if self._silent >= self._limits.timeouts_to_break:
            self.abandon(f"{self._silent} requests in a row were not answered in time")


def _expire(answer: "asyncio.Future[pb.ServerFrame]") -> None:
    if not answer.done():
        answer.set_exception(LinkTimeout("no answer in time"))


def _why(error: BaseException) -> str:
    return (error.details() or error.code().name) if isinstance(error, grpc.aio.AioRpcError) else str(error)
