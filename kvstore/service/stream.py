"""One Session stream of the server = one session of the Store, from Open until the stream ends, however it ends.

Runs on the Store's own loop. Frames are handled in the order they came; only acquire, which may wait, runs beside the
others when it has to, so that a release or a commit behind it is not held up.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...proto import FieldError
from ...proto import kv_pb2 as pb
from ..events.hbm_frames import unpack_hbm
from ..security.limits import check
from ..session import Session
from . import frames
from .frames import FrameError
from .insight_frames import unpack_receipt

log = logging.getLogger(__name__)

MAX_WAITING = 4096  # acquires of one session that may wait at once
MAX_DEADLINE_S = 600.0

Read = Callable[[], Awaitable[pb.ClientFrame | None]]
Write = Callable[[pb.ServerFrame], Awaitable[None]]


class SessionStream:
    """Serves the frames of `session`. `read` returns None at the end of the stream; writes are made one at a time."""

    def __init__(self, session: Session, read: Read, write: Write) -> None:
        self._session, self._read, self._write = session, read, write
        self._writing = asyncio.Lock()
        self._waiting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer until the client ends the stream. Whoever runs this closes the session afterwards."""
        try:
            while (frame := await self._read()) is not None:
                for earlier in frame.before:
                    answer = self._answer(earlier)
                    if answer is not None:  # an acquire does not ride along
                        await self._send(answer)
                if frame.WhichOneof("body") == "goodbye":
                    return
                if frame.before and frame.WhichOneof("body") is None:
                    continue
                answer = self._answer(frame)
                if answer is not None:
                    await self._send(answer)
                elif len(self._waiting) >= MAX_WAITING:
                    busy = pb.Acquired(first=frame.acquire.skip, reason="busy")
                    await self._send(pb.ServerFrame(id=frame.id, acquired=busy))
                else:
                    task = asyncio.get_running_loop().create_task(self._acquire(frame))
                    self._waiting.add(task)
                    task.add_done_callback(self._waiting.discard)
        finally:
            for task in self._waiting:
                task.cancel()

    async def idle(self) -> None:
        """Wait until no acquire is unanswered."""
        while self._waiting:
            await asyncio.wait(set(self._waiting))

    async def _acquire(self, frame: pb.ClientFrame) -> None:
        asked = frame.acquire
        try:
            wait = frames.unpack_wait(asked)
            given = await self._session.acquire(
                asked.tokens,
                skip=asked.skip,
                deadline_s=asked.deadline_s,
                wait=wait,
                origin=frames.unpack_origin(asked),
            )
            answer = pb.ServerFrame(id=frame.id, acquired=frames.pack_acquired(given))
        except Exception as error:  # noqa: BLE001  # the RPC edge: _invalid logs what is our fault
            answer = _invalid(frame, error)
        await self._send(answer)

    async def _send(self, answer: pb.ServerFrame) -> None:
        if answer.id == 0:
            if answer.HasField("invalid"):
                log.warning("a client's request was wrong: %s %s", answer.invalid.field, answer.invalid.message)
            return
        async with self._writing:
            await self._write(answer)

    def _answer(self, frame: pb.ClientFrame) -> pb.ServerFrame | None:
        """None when it must wait for a lower tier."""
        try:
            check(frame)
            return self._dispatch(frame)
        except Exception as error:  # noqa: BLE001  # the RPC edge: _invalid logs what is our fault
            return _invalid(frame, error)

    def _dispatch(self, frame: pb.ClientFrame) -> pb.ServerFrame | None:
        session = self._session
        match frame.WhichOneof("body"):
            case "acquire":
                asked = frame.acquire
                tokens = frames.check_tokens(asked.tokens)
                if not 0 <= asked.deadline_s <= MAX_DEADLINE_S:
                    raise FrameError("deadline_s", f"{asked.deadline_s} is not between 0 and {MAX_DEADLINE_S}")
                wait = frames.unpack_wait(asked)
                origin = frames.unpack_origin(asked)
                given = session.acquire_now(
                    tokens, skip=asked.skip, deadline_s=asked.deadline_s, wait=wait, origin=origin
                )
                if given is None:
                    return None
                return pb.ServerFrame(id=frame.id, acquired=frames.pack_acquired(given))
            case "lookup":
                found = session.lookup(frames.check_tokens(frame.lookup.tokens))
                return pb.ServerFrame(id=frame.id, found=frames.pack_found(found))
            case "release":
                session.release(frame.release.lease, corrupt=tuple(frame.release.corrupt))
                return pb.ServerFrame(id=frame.id, done=pb.Done(ok=True))
            case "reserve":
                asked = frame.reserve
                given = session.reserve(
                    frames.check_tokens(asked.tokens),
                    start=asked.start,
                    count=asked.count,
                    retention=frames.unpack_retention(asked.retention),
                )
                return pb.ServerFrame(id=frame.id, reserved=frames.pack_reserved(given))
            case "commit":
                checksums = frames.unpack_column(frame.commit.checksums, "<u8", "checksums")
                return pb.ServerFrame(id=frame.id, done=pb.Done(ok=session.commit(frame.commit.lease, checksums)))
            case "abort":
                session.abort(frame.abort.lease)
                return pb.ServerFrame(id=frame.id, done=pb.Done(ok=True))
            case "open":
                raise FrameError("open", "the session is open already")
            case _:
                self._note(frame)
                return pb.ServerFrame(id=frame.id, done=pb.Done(ok=True))

    def _note(self, frame: pb.ClientFrame) -> None:
        """What the client merely tells."""
        session = self._session
        match frame.WhichOneof("body"):
            case "prefetch":
                asked = frame.prefetch
                session.prefetch(asked.ticket, frames.check_tokens(asked.tokens), skip=asked.skip)
            case "cancel_prefetch":
                session.cancel_prefetch(frame.cancel_prefetch.ticket)
            case "observe":
                session.observe([(each.first, each.tokens, each.seconds) for each in frame.observe.prefills])
            case "abandon":
                session.abandon(frame.abandon.ticket)
            case "hbm":
                session.hbm(unpack_hbm(frame.hbm), whole=frame.hbm.whole)
            case "retain":
                wish = frames.unpack_retention(frame.retain.retention)
                session.retain(frames.check_tokens(frame.retain.tokens), wish)
            case "served":
                session.served(unpack_receipt(frame.served))
            case other:
                raise FrameError("body", f"{other!r} is no request of wire version {frames.WIRE_VERSION}")


def _invalid(frame: pb.ClientFrame, error: Exception) -> pb.ServerFrame:
    """The edge where errors become answers: a bad request says which field; a fault of ours is logged."""
    if isinstance(error, FrameError | FieldError):
        invalid = pb.Invalid(field=error.field, message=error.message)
    elif isinstance(error, ValueError):
        invalid = pb.Invalid(field=frame.WhichOneof("body") or "body", message=str(error))
    else:
        log.error("a %s failed", frame.WhichOneof("body"), exc_info=error)
        invalid = pb.Invalid(message=f"the server failed: {type(error).__name__}")
    return pb.ServerFrame(id=frame.id, invalid=invalid)
