"""One Session stream of the server = one session of the Store, from Open until the stream ends, however it ends.

Runs on the Store's own loop. Frames are handled in the order they came; only acquire, which may wait, runs beside the
others, so that a release or a commit behind it is not held up.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from ...proto import kv_pb2 as pb
from ..session import Session
from . import frames

log = logging.getLogger(__name__)

MAX_WAITING = 4096  # acquires of one session that may wait at once

Read = Callable[[], Awaitable[pb.ClientFrame | None]]
Write = Callable[[pb.ServerFrame], Awaitable[None]]


class SessionStream:
    """Serves the frames of `session`. `read` returns None at the end of the stream; writes are made one at a time."""

    def __init__(self, session: Session, read: Read, write: Write) -> None:
        self._session, self._read, self._write = session, read, write
        self._writing = asyncio.Lock()
        self._waiting: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Answer until the client ends the stream. Whoever cancels this must still close the session."""
        try:
            while (frame := await self._read()) is not None:
                if frame.WhichOneof("body") == "goodbye":
                    return
                if frame.WhichOneof("body") != "acquire":
                    await self._send(self._answer(frame))
                elif len(self._waiting) >= MAX_WAITING:
                    await self._send(frames.busy(frame.id, frame.acquire.skip))
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
        await self._send(await self._guard_async(frame))

    async def _send(self, frame: pb.ServerFrame) -> None:
        async with self._writing:
            await self._write(frame)
