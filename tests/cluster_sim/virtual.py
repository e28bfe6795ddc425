"""Virtual time: an asyncio loop whose clock jumps to the next timer. Nothing sleeps, nothing opens a socket.

Two runs of one seed do the same in the same order, in other processes too: tasks and futures hash by number (asyncio
keeps them in sets), threads are replaced by seeded delays.
"""

import asyncio
import contextvars
import itertools
import random
from collections.abc import Callable, Coroutine
from typing import Any

MAX_TURNS = 20_000  # of the loop without time going on: somebody spins


class Stuck(Exception):
    """Nothing is left that could go on, or something spins."""


class Life:
    """One run of one process: what dies together. Tasks belong to the life in whose context they are made."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.on_end: dict[Callable[[], None], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(LIFE.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(work, context=self.context.copy())

    def kill(self) -> None:
        """As kill -9: nothing of it says a word any more (the network sees to that), and its tasks end."""
        self.alive = False
        for tell in list(self.on_end):
            tell()
        self.on_end.clear()
        for task in list(self.tasks):
            task.cancel()


LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar("LIFE", default=None)


class _Numbers:
    """Of the tasks and futures of the loop made last."""

    next = itertools.count(1)


class _Future(asyncio.Future[Any]):
    def __new__(cls, *args: Any, **options: Any) -> "_Future":
        made = super().__new__(cls)
        made.number = next(_Numbers.next)
        return made

    def __hash__(self) -> int:
        return self.number


class _Task(asyncio.Task[Any]):
    def __new__(cls, *args: Any, **options: Any) -> "_Task":
        made = super().__new__(cls)
        made.number = next(_Numbers.next)  # before it is put into a set, which its own construction does
        return made

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """rng: decides how long work on threads takes."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._now = 0.0
        self._turns = 0
        self._rng = rng
        _Numbers.next = itertools.count(1)
        self._selector = self  # BaseEventLoop asks it how long to wait
        self.set_task_factory(self._make_task)
        self.slow_threads = 0.02  # how often a thread is late

    def time(self) -> float:
        return self._now

    def select(self, timeout: float | None) -> list[Any]:
        """In place of a selector: instead of waiting, it is later."""
        if timeout is None:
            raise Stuck("nothing is left to happen")
        if timeout > 0:
            self._now += timeout
            self._turns = 0
        self._turns += 1
        if self._turns > MAX_TURNS:
            raise Stuck(f"at {self._now:.3f} s something spins")
        return []

    def _process_events(self, event_list: Any) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def create_future(self) -> "asyncio.Future[Any]":
        return _Future(loop=self)

    def _make_task(
        self, loop: Any, work: Coroutine[Any, Any, Any], context: contextvars.Context | None = None
    ) -> "asyncio.Task[Any]":
        made = _Task(work, loop=loop, context=context)
        life = context.get(LIFE) if context is not None else LIFE.get()
        if life is not None:
            life.tasks[made] = None
            made.add_done_callback(lambda task: life.tasks.pop(task, None))
        return made

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        """The work is done at its beginning or at its end, for all that others do meanwhile."""
        future = self.create_future()
        late = self._rng.random() < self.slow_threads
        delay = self._rng.uniform(0.05, 1.0) if late else self._rng.uniform(0.0, 0.002)
        early = self._call(func, args) if self._rng.random() < 0.5 else None

        def end() -> None:
            result, error = early or self._call(func, args)
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(delay, end)
        return future

    @staticmethod
    def _call(func: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Exception | None]:
        try:
            return func(*args), None
        except Exception as error:  # noqa: BLE001 - it is for whoever waits for it
            return None, error
