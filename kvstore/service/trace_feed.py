"""TraceFeed: what is asked of a store as a stream of salted hashes, for capturing request traces.

Token ids never leave. The salt is new for each feed and is never told: equal prefixes have equal hashes within a feed,
and nothing can be looked up by them. A reader that is slow loses events, and is told how many.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable

from ...proto import kv_pb2 as pb
from ..ghosts import traces
from ..store import Store

MAX_WAITING = 4096
TOKEN_BYTES = 4


class TraceFeed:
    """Open until close(); events are taken one by one with next()."""

    def __init__(self, store: Store, clock: Callable[[], float], salt: int | None = None) -> None:
        self._salt = secrets.randbits(64) if salt is None else salt
        self._clock = clock
        self._began: float | None = None
        self._events: deque[pb.TraceEvent] = deque()
        self._lost = 0
        self._some = asyncio.Event()
        self._untap = store.tap(self._take)

    async def next(self) -> pb.TraceEvent:
        """The oldest event not taken yet; waits for one."""
        while not self._events:
            self._some.clear()
            await self._some.wait()
        return self._events.popleft()

    def close(self) -> None:
        """Listen no longer."""
        self._untap()

    def _take(self, fingerprint: bytes, tokens: bytes, block_tokens: int) -> None:
        if len(self._events) >= MAX_WAITING:
            self._lost += 1
            return
        now = self._clock()
        self._began = now if self._began is None else self._began
        size = block_tokens * TOKEN_BYTES
        space = traces(self._salt, fingerprint, len(fingerprint), 0, 1)[0]
        event = pb.TraceEvent(
            timestamp_s=now - self._began,
            input_length=len(tokens) // TOKEN_BYTES,
            hashes=traces(space, tokens, size, 0, len(tokens) // size),
            block_tokens=block_tokens,
            namespace=space.to_bytes(8, "little"),
            lost=self._lost,
        )
        self._lost = 0
        self._events.append(event)
        self._some.set()
