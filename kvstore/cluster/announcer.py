"""Announcer: tells the directory which marks this node holds. A Watcher of the store.

It keeps the marks itself, with the tiers that have each, so that everything can be said again whenever Valkey has lost
it. Changes wait in a backlog where a later one of a mark takes the place of an earlier one; it is bounded: beyond,
what waits is forgotten and everything is said again instead (a withdrawal that is lost so is not believed for longer
than an entry lives). Sent by one task, in order, at most a batch each TICK_S. Used on the store's loop.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from .marks import marks_of
from .stats import ClusterCounters
from .valkey import Unavailable

TICK_S = 0.05
BATCH = 2000  # marks
REPEATS = 500  # marks that are said again in a tick when nothing was lost
BACKLOG = 100_000  # changes
REFRESH_S = 300.0

# fingerprint, adds, removes; Unavailable
Send = Callable[[bytes, Sequence[bytes], Sequence[bytes]], Awaitable[None]]


class _Space:
    """A namespace. tiers: of each mark held, as bits; changes: not sent yet, True = add."""

    def __init__(self) -> None:
        self.tiers: dict[bytes, int] = {}
        self.changes: dict[bytes, bool] = {}


class Announcer:
    """send: to the directory. ready: whether it makes sense to try."""

    def __init__(
        self,
        send: Send,
        ready: Callable[[], bool],
        counters: ClusterCounters,
        *,
        backlog: int = BACKLOG,
        refresh_s: float = REFRESH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._ready = ready
        self._counters = counters
        self._max_backlog = backlog
        self._refresh_s = refresh_s
        self._clock = clock
        self._spaces: dict[bytes, _Space] = {}
        self._bits: dict[str, int] = {}
        self._backlog = 0
        self._repeats: deque[tuple[bytes, list[bytes]]] = deque()  # to be said again
        self._hurry = False  # because Valkey lost them
        self._refresh_at = clock() + refresh_s
        self._wake = asyncio.Event()

    @property
    def marks(self) -> int:
        """Marks that this node holds."""
        return sum(len(space.tiers) for space in self._spaces.values())

    @property
    def backlog(self) -> int:
        """Changes that wait."""
        return self._backlog

    def stored(
        self, tier: str, fingerprint: bytes, first: int, keys: Sequence[bytes], parent: bytes, tokens: bytes
    ) -> None:
        marks = marks_of(first, len(keys))
        if not marks:
            return
        space = self._spaces.setdefault(fingerprint, _Space())
        bit = self._bit(tier)
        for ordinal in marks:
            key = keys[ordinal - first]
            had = space.tiers.get(key, 0)
            space.tiers[key] = had | bit
            if not had:
                self._change(space, key, True)
        self._bound()

    def removed(self, tier: str, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        space = self._spaces.get(fingerprint)
        if space is None:
            return
        bit = self._bit(tier)
        for key in keys:
            had = space.tiers.get(key, 0)
            if had == bit:
                del space.tiers[key]
                self._change(space, key, False)
            elif had:
                space.tiers[key] = had & ~bit
        self._bound()

    def cleared(self, tier: str, fingerprint: bytes) -> None:
        space = self._spaces.get(fingerprint)
        if space is not None:
            self.removed(tier, fingerprint, list(space.tiers))

    def say_again(self, why: str, *, hurry: bool = True) -> None:
        """Everything, as it is when its turn comes. hurry: as fast as changes are said."""
        self._counters.full_announces[why] += 1
        self._repeats = deque((fingerprint, list(space.tiers)) for fingerprint, space in self._spaces.items())
        self._hurry = hurry
        self._refresh_at = self._clock() + self._refresh_s
        self._wake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            try:
                async with asyncio.timeout(max(TICK_S, self._refresh_at - self._clock())):
                    await self._wake.wait()
            except TimeoutError:
                pass
            if self._clock() >= self._refresh_at:
                self.say_again("refresh", hurry=False)
            await asyncio.sleep(TICK_S)  # what changes together goes together
            if self._ready() and await self._tick() and not self._backlog and not self._repeats:
                self._wake.clear()

    async def _tick(self) -> bool:
        """Send a batch. False: something could not be sent; it waits again."""
        batches = self._take_changes(BATCH)
        room = BATCH - sum(len(adds) + len(removes) for _, adds, removes in batches)
        batches += self._take_repeats(room if self._hurry else min(room, REPEATS))
        for sent, (fingerprint, adds, removes) in enumerate(batches):
            try:
                await self._send(fingerprint, adds, removes)
            except Unavailable:
                self._counters.announce_failures += 1
                for batch in batches[sent:]:
                    self._put_back(*batch)
                return False
        return True

    def _take_changes(self, room: int) -> list[tuple[bytes, list[bytes], list[bytes]]]:
        taken: list[tuple[bytes, list[bytes], list[bytes]]] = []
        for fingerprint, space in list(self._spaces.items()):
            adds: list[bytes] = []
            removes: list[bytes] = []
            for key in list(islice(space.changes, room)):
                (adds if space.changes.pop(key) else removes).append(key)
            if adds or removes:
                taken.append((fingerprint, adds, removes))
                room -= len(adds) + len(removes)
                self._backlog -= len(adds) + len(removes)
            if not space.changes and not space.tiers:
                del self._spaces[fingerprint]
        return taken

    def _take_repeats(self, room: int) -> list[tuple[bytes, list[bytes], list[bytes]]]:
        taken: list[tuple[bytes, list[bytes], list[bytes]]] = []
        while room > 0 and self._repeats:
            fingerprint, keys = self._repeats[0]
            some, rest = keys[:room], keys[room:]
            if rest:
                self._repeats[0] = (fingerprint, rest)
            else:
                self._repeats.popleft()
            space = self._spaces.get(fingerprint)
            still = [key for key in some if key in space.tiers] if space is not None else []
            if still:
                taken.append((fingerprint, still, []))
            room -= len(some)
        return taken

    def _put_back(self, fingerprint: bytes, adds: Sequence[bytes], removes: Sequence[bytes]) -> None:
        """Unless something newer waits. What it adds may have been removed since, and the reverse."""
        space = self._spaces.setdefault(fingerprint, _Space())
        for key in (*adds, *removes):
            if key not in space.changes:
                self._change(space, key, key in space.tiers)
        self._bound()

    def _change(self, space: _Space, key: bytes, add: bool) -> None:
        if key not in space.changes:
            self._backlog += 1
        space.changes[key] = add
        self._wake.set()

    def _bound(self) -> None:
        if self._backlog <= self._max_backlog:
            return
        for space in self._spaces.values():
            space.changes.clear()
        self._backlog = 0
        self.say_again("backlog")

    def _bit(self, tier: str) -> int:
        return self._bits.setdefault(tier, 1 << len(self._bits))

    def check(self) -> None:
        """Recounts; for tests."""
        assert self._backlog == sum(len(space.changes) for space in self._spaces.values())
        for space in self._spaces.values():
            assert all(space.tiers.values())
            assert all(add == (key in space.tiers) for key, add in space.changes.items())
