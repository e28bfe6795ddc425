"""The simulated network: who reaches whom, how long it takes, what goes wrong on the way. Everything from one seed.

A connection keeps the order of what is sent on it, as TCP does, and stalls while it is cut; what is sent on different
connections overtakes freely. A host that is down answers nothing, a process that is down is refused at once.
"""

import asyncio
import contextlib
import contextvars
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from .virtual import Life

RETRANSMIT_S = 0.2
LATEST_S = 3.0  # a message that nothing cuts off is not later
REFUSED_S = 0.001


class Broken(Exception):
    """The connection is gone: "refused" or "reset"."""


@dataclass
class Weather:
    """How the network is now; shares are of messages."""

    delay_s: float = 0.0005
    loss: float = 0.0  # retransmitted, as TCP does: late
    reset: float = 0.0  # the connection breaks
    flipped: float = 0.0  # a byte arrives as another
    doubled: float = 0.0  # a request arrives twice
    swapped: float = 0.0  # two parts of a stream change places, or one comes twice


class Net:
    """rng: its own. listening: what listens, by address."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.weather = Weather()
        self.slow: dict[str, float] = {}  # hosts, by how much
        self.listening: dict[str, Any] = {}
        self.dark: set[str] = set()  # hosts that are down
        self._cut: Counter[tuple[str, str]] = Counter()
        self._changed = asyncio.Event()
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._digest = hashlib.blake2b(digest_size=8)
        self.counts: Counter[str] = Counter()
        self.trace: Callable[[str], None] | None = None

    def note(self, what: str) -> None:
        """For the digest of what happened, which two runs of a seed share."""
        self.counts[what.split(" ", 1)[0]] += 1
        line = f"{asyncio.get_running_loop().time():.6f} {what}"
        self._digest.update(line.encode())
        if self.trace is not None:
            self.trace(line)

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def cut(self, a: str, b: str) -> Callable[[], None]:
        """No message of a reaches b. What this returns ends it."""
        self._cut[a, b] += 1

        def heal() -> None:
            self._cut[a, b] -= 1
            self.change()

        return heal

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Of the network itself: it outlives whoever asked for it."""
        task = asyncio.get_running_loop().create_task(work, context=contextvars.Context())
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))

    def change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def reaches(self, a: str, b: str) -> bool:
        return self._cut[a, b] == 0 and a not in self.dark and b not in self.dark

    async def cross(self, a: str, b: str, size_bytes: int = 100) -> None:
        """A message's way. Broken: "reset"; never: it does not arrive."""
        factor = self.slow.get(a, 1.0) * self.slow.get(b, 1.0)
        delay = factor * (self.weather.delay_s * self.rng.uniform(0.2, 3.0) + size_bytes / 200e6)
        while self.rng.random() < self.weather.loss and delay < LATEST_S:
            delay += RETRANSMIT_S * self.rng.uniform(0.5, 2.0)
        await asyncio.sleep(min(delay, LATEST_S))
        while not self.reaches(a, b):
            await self._changed.wait()
        if self.rng.random() < self.weather.reset:
            raise Broken("reset")

    def damaged(self, data: bytes) -> bytes:
        """As it arrives."""
        if data and self.rng.random() < self.weather.flipped:
            at = self.rng.randrange(len(data))
            self.note("flip")
            return data[:at] + bytes([data[at] ^ self.rng.randrange(1, 256)]) + data[at + 1 :]
        return data


class Pipe:
    """One direction of a connection: at most `window` messages under way, in order. life: the sender's; when it is
    killed, the receiver learns of it, unless its host is gone too."""

    def __init__(self, net: Net, life: Life, sender: str, receiver: str, window: int = 4) -> None:
        self._net, self._life = net, life
        self._way = sender, receiver
        self._room = asyncio.Semaphore(window)
        self._out: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._in: asyncio.Queue[bytes | Exception | None] = asyncio.Queue()
        self._pump = life.spawn(self._run())
        life.on_end[self._died] = None

    async def put(self, data: bytes) -> None:
        await self._room.acquire()
        self._out.put_nowait(data)

    def finish(self, error: Exception | None = None) -> None:
        """The last word."""
        self._out.put_nowait(error)

    async def get(self) -> bytes | None:
        """The next message, None at the end; raises what the sender ended with, or Broken."""
        item = await self._in.get()
        if not isinstance(item, bytes):
            self._in.put_nowait(item)  # it stays at its end
            if item is not None:
                raise item
        self._room.release()
        return item

    def close(self) -> None:
        """Nobody reads any more."""
        self._pump.cancel()
        self._life.on_end.pop(self._died, None)

    def _died(self) -> None:
        if self._way[0] not in self._net.dark:
            self._net.spawn(self._reset())

    async def _reset(self) -> None:
        with contextlib.suppress(Broken):
            await self._net.cross(*self._way)
        self._in.put_nowait(Broken("reset"))

    async def _run(self) -> None:
        held: bytes | None = None
        while True:
            item = await self._out.get()
            try:
                await self._net.cross(*self._way, len(item) if isinstance(item, bytes) else 100)
            except Broken as error:
                item = error
            if isinstance(item, bytes):
                item = self._net.damaged(item)
                if held is None and self._net.rng.random() < self._net.weather.swapped:
                    self._net.note("swap")
                    if self._net.rng.random() < 0.5:
                        held = item  # comes behind the next one
                        continue
                    self._in.put_nowait(item)  # and again below
            elif held is not None:
                self._in.put_nowait(held)
            self._in.put_nowait(item)
            if not isinstance(item, bytes):
                self._life.on_end.pop(self._died, None)
                return
            if held is not None:
                self._in.put_nowait(held)
                held = None
