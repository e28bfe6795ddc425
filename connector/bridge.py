"""Bridge: the one place where the engine's threads meet asyncio.

It owns a background thread and the event loop in it; the StoreClient lives on that loop and is touched nowhere
else. The number of tasks that callers may have open is bounded; follow-ups (releases, aborts) are not refused,
because each belongs to a lease that an admitted task took.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 1.0  # for the way from the loop back to a thread that waits


class Bridge:
    """Runs coroutines for threads that must not wait. Started by construction; close() joins the thread."""

    def __init__(self, *, max_tasks: int, late_s: float) -> None:
        self._max_tasks = max_tasks
        self._late_s = late_s
        self._admitted = 0
        self._closed = False
        self._lock = threading.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._logged: set[str] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="kvterrace-bridge", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def call(self, start: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T:
        """Run to completion and return the result: for start-up and shut-down, not for the step thread.

        TimeoutError after timeout_s (the coroutine is then cancelled); exceptions of the coroutine pass through.
        """

        async def bounded() -> T:
            async with asyncio.timeout(timeout_s):
                return await start()

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    def inquire(self, start: Callable[[], Coroutine[Any, Any, T]], timeout_s: float) -> T | None:
        """The result, or None: late, failed, too many tasks, closed. Waits: not for the step thread, nor the loop."""
        answer: Future[T | None] = Future()

        async def run() -> None:
            found: T | None = None
            try:
                found, _ = await self.ask(start(), timeout_s, None)
            finally:
                answer.set_result(found)

        if not self.submit(run):
            return None
        with suppress(TimeoutError):
            return answer.result(timeout_s + GRACE_S)
        return None

    def submit(self, start: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Run start() in the background; False, and nothing runs, if max_tasks are open or the bridge is closed."""
        with self._lock:
            if self._closed or self._admitted >= self._max_tasks:
                return False
            self._admitted += 1
            # Inside the lock: what was admitted is on the loop before close() begins to wind it down.
            self._loop.call_soon_threadsafe(self._begin, start, self._leave)
        return True

    def follow_up(self, start: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """As submit(), outside the bound; False only once the bridge is closed (the session's end frees the rest)."""
        with self._lock:
            if self._closed:
                return False
            self._loop.call_soon_threadsafe(self._begin, start, None)
        return True

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """Keep a task of this loop until it ends, log what it raises, and end it with the bridge. On the loop."""
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    async def from_thread(self, start: Callable[[Callable[[T], None]], Any]) -> T | None:
        """Await what start(done) will hand to `done` from another thread; None if start returns None. On the loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: T) -> None:
            if not future.done():
                future.set_result(result)

        def done(result: T) -> None:
            # The loop closes when its thread ends: who lost that race has nobody left to tell.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(settle, result)

        return await future if start(done) is not None else None

    async def ask(
        self, call: Coroutine[Any, Any, T], deadline_s: float, late: Callable[[T], Coroutine[Any, Any, None]] | None
    ) -> tuple[T | None, str]:
        """Await a client call for at most deadline_s: (answer, "") or (None, "deadline" | "error"). On the loop.

        A call that is late goes on in the background for late_s; what it brings is given to `late`, so that a
        lease nobody waits for is released as soon as it is known.
        """
        task = asyncio.ensure_future(call)
        try:
            await asyncio.wait({task}, timeout=max(0.0, deadline_s))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            answer, reason = self._outcome(task)
            return answer, reason
        self.adopt(asyncio.ensure_future(self._await_late(task, late)))
        return None, "deadline"

    def close(self, last: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> None:
        """Refuse new tasks, give the open ones timeout_s and then `last` timeout_s, cancel the rest, join."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        asyncio.run_coroutine_threadsafe(self._wind_down(last, timeout_s), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _wind_down(self, last: Callable[[], Coroutine[Any, Any, None]], timeout_s: float) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
        goodbye = asyncio.ensure_future(last())
        await asyncio.wait({goodbye}, timeout=timeout_s)
        rest = {goodbye, *self._tasks}
        for task in rest:
            task.cancel()
        # A task that swallows its cancellation must not hold the engine's shutdown: it is left to the daemon thread.
        await asyncio.wait(rest, timeout=timeout_s)
        if goodbye.done():
            self._outcome(goodbye)

    def _begin(
        self,
        start: Callable[[], Coroutine[Any, Any, None]],
        then: Callable[[asyncio.Task[Any]], None] | None,
    ) -> None:
        task = self._loop.create_task(start())
        self.adopt(task)
        if then is not None:
            task.add_done_callback(then)

    def _leave(self, _task: asyncio.Task[Any]) -> None:
        with self._lock:
            self._admitted -= 1

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._outcome(task)

    async def _await_late(self, task: asyncio.Task[T], late: Callable[[T], Coroutine[Any, Any, None]] | None) -> None:
        try:
            await asyncio.wait({task}, timeout=self._late_s)
        finally:
            if not task.done():
                task.cancel()
        if not task.done():
            return
        answer, reason = self._outcome(task)
        if late is not None and not reason and answer is not None:
            await late(answer)

    def _outcome(self, task: asyncio.Future[T]) -> tuple[T | None, str]:
        """The supervisor's edge: what a task raised becomes a reason, logged once per kind of exception."""
        if task.cancelled():
            return None, "error"
        error = task.exception()
        if error is None:
            return task.result(), ""
        kind = type(error).__name__
        if kind not in self._logged:
            self._logged.add(kind)
            logger.warning("store client failed with %s; it is answered as a miss", kind, exc_info=error)
        return None, "error"
