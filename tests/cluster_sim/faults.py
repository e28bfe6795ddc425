"""What goes wrong, and when: a few events of each run, each for a while, some at once."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING

from .valkey_net import HOST as VALKEY

if TYPE_CHECKING:
    from .world import World


class Faults:
    """On a world; its rng decides."""

    def __init__(self, world: "World") -> None:
        self._world, self._net, self._rng = world, world.net, world.rng

    async def run(self, until: float) -> None:
        """Returns when all has been undone."""
        kinds = [
            self._crash,
            self._crash,
            self._drain,
            self._partition,
            self._partition,
            self._apart_from_valkey,
            self._valkey_lost,
            self._valkey_hangs,
            self._valkey_forgets,
            self._slow,
            self._loss,
            self._damage,
            self._doubled,
        ]
        events = self._rng.randint(2, 7)
        tasks = [
            asyncio.ensure_future(self._event(self._rng.choice(kinds), self._rng.uniform(0.5, until * 0.8)))
            for _ in range(events)
        ]
        await asyncio.gather(*tasks)

    async def _event(self, kind: Callable[[], contextlib.AbstractAsyncContextManager[None]], at: float) -> None:
        await asyncio.sleep(at)
        length = self._rng.choice((0.1, 0.5, 1.5, 4.0)) * self._rng.uniform(0.5, 1.5)
        async with kind():
            await asyncio.sleep(length)

    def _note(self, what: str) -> None:
        self._net.note(what)

    def _host(self) -> str:
        return self._rng.choice(list(self._world.hosts))

    @contextlib.asynccontextmanager
    async def _crash(self) -> AsyncGenerator[None]:
        name = self._host()
        dark, lost = self._rng.random() < 0.4, self._rng.random() < 0.3
        self._note(f"crash {name} dark={dark}")
        self._world.crash(name, dark=dark)
        yield
        self._note(f"revive {name} lost_disk={lost}")
        self._world.revive(name, lost_disk=lost)

    @contextlib.asynccontextmanager
    async def _drain(self) -> AsyncGenerator[None]:
        """A node hands over and leaves, and comes back."""
        name = self._host()
        self._note(f"drain {name}")
        await self._world.drain(name, self._rng.choice((0.3, 2.0)))
        yield
        self._note(f"revive {name}")
        self._world.revive(name, lost_disk=False)

    @contextlib.asynccontextmanager
    async def _partition(self) -> AsyncGenerator[None]:
        """Of two nodes, one way or both, or of one from all."""
        a, b, both, alone = self._host(), self._host(), self._rng.random() < 0.7, self._rng.random() < 0.3
        ways = [(a, b)] if not alone else [(a, each) for each in (*self._world.hosts, VALKEY) if each != a]
        self._note(f"partition {ways} both={both}")
        heals = [self._net.cut(x, y) for x, y in ways] + [self._net.cut(y, x) for x, y in ways if both]
        yield
        self._note(f"heal {ways}")
        for heal in heals:
            heal()

    @contextlib.asynccontextmanager
    async def _apart_from_valkey(self) -> AsyncGenerator[None]:
        a, answers_only = self._host(), self._rng.random() < 0.4
        self._note(f"partition {a} {VALKEY} answers_only={answers_only}")
        heals = [self._net.cut(VALKEY, a)] + ([] if answers_only else [self._net.cut(a, VALKEY)])
        yield
        self._note(f"heal {a} {VALKEY}")
        for heal in heals:
            heal()

    @contextlib.asynccontextmanager
    async def _valkey_lost(self) -> AsyncGenerator[None]:
        keep = self._rng.random() < 0.3
        self._note("kill valkey")
        self._world.valkey.kill()
        yield
        self._note(f"start valkey keep={keep}")
        self._world.valkey.start(keep=keep)

    @contextlib.asynccontextmanager
    async def _valkey_hangs(self) -> AsyncGenerator[None]:
        self._note("hang valkey")
        self._world.valkey.hang(True)
        yield
        self._note("go valkey")
        self._world.valkey.hang(False)

    @contextlib.asynccontextmanager
    async def _valkey_forgets(self) -> AsyncGenerator[None]:
        """As FLUSHALL, or as a replica that was behind becoming the master."""
        self._note("flush valkey")
        self._world.valkey.model.lose()
        yield

    @contextlib.asynccontextmanager
    async def _slow(self) -> AsyncGenerator[None]:
        name = self._rng.choice((*self._world.hosts, VALKEY))
        self._note(f"slow {name}")
        self._net.slow[name] = self._rng.choice((10.0, 100.0, 1000.0))
        yield
        self._net.slow.pop(name, None)

    @contextlib.asynccontextmanager
    async def _weather(self, name: str, value: float) -> AsyncGenerator[None]:
        weather = self._net.weather
        before = getattr(weather, name)
        self._note(f"weather {name} {value}")
        setattr(weather, name, value)
        yield
        setattr(weather, name, before)

    def _loss(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._weather(*self._rng.choice((("loss", 0.02), ("loss", 0.2), ("reset", 0.05))))

    def _damage(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._weather(*self._rng.choice((("flipped", 0.05), ("flipped", 0.3), ("swapped", 0.1))))

    def _doubled(self) -> contextlib.AbstractAsyncContextManager[None]:
        return self._weather("doubled", 0.3)
