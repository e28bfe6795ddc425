"""Drain: a node gives its hottest blocks to others, takes nothing new, and leaves when that is done or it is time.

What others have already is not given again: whoever is known to hold most of a path is asked first, and takes what it
lacks. Everyone's own rules say what it takes: nothing that is colder than what would have to leave for it. What nobody
takes is lost with the process, unless the lower tier keeps it for the next start. On the store's loop.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable

from ...proto import kv_pb2 as pb
from ..peer.client import PeerClient, PeerError
from .neighbours import SINCE_VERSION, Neighbours
from .paths import Path, pack_path
from .stock import Stock

log = logging.getLogger(__name__)

GIVING = 4  # paths at once
ROOM_S = 2.0  # to ask a node how much room it has
FIND_S = 0.1
CALL_S, CALL_BYTES_S = 5.0, 16e6  # a path may take so long, and longer the larger it is
BUSY_S = 0.1
LAST_SHARE, LAST_S = 0.1, 2.0  # of the deadline that is left for the lower tier and for leaving
REPORT_S = 0.25
UNLIMITED = 1 << 62


class Drain:
    """flush: what waits for the lower tier, within so many seconds; how many blocks are not written. leave: ends the
    process."""

    def __init__(
        self,
        stock: Stock,
        flush: Callable[[float], Awaitable[int]],
        leave: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.neighbours: Neighbours | None = None
        """The other nodes; None while this is no node of a cluster."""
        self._stock = stock
        self._flush = flush
        self._leave = leave
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._began = 0.0
        self._said = pb.DrainProgress()
        self._queue: deque[Path] = deque()
        self._free: dict[str, int] = {}  # bytes, of nodes that may take more
        self._left: Counter[str] = Counter()
        self._nobody = "nobody"  # or why the last one takes no more

    @property
    def begun(self) -> bool:
        return self._task is not None

    def begin(self, deadline_s: float, *, stay: bool) -> None:
        """Once; a second call changes nothing. stay: do not end the process."""
        if self._task is None:
            self._began = self._clock()
            self._said.phase = "handing"
            self._task = asyncio.get_running_loop().create_task(self._run(deadline_s, stay))

    def progress(self) -> pb.DrainProgress:
        """As it is now."""
        said = pb.DrainProgress()
        said.CopyFrom(self._said)
        if said.phase != "done":
            said.seconds = self._clock() - self._began
        said.waiting_blocks = sum(path.blocks for path in self._queue)
        for reason, blocks in self._left.items():
            said.left[reason] = blocks
        return said

    async def watch(self) -> AsyncGenerator[pb.DrainProgress]:
        """Now, now and then, and once it is done."""
        assert self._task is not None
        while not self._task.done():
            yield self.progress()
            await asyncio.wait({self._task}, timeout=REPORT_S)
        yield self.progress()

    async def close(self) -> None:
        """Give up."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self, deadline_s: float, stay: bool) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        log.info("draining, for %.0f s at most", deadline_s)
        self._stock.drain()
        try:
            async with asyncio.timeout_at(end - min(LAST_S, LAST_SHARE * deadline_s)):
                await self._hand_over()
        except TimeoutError:
            pass
        except Exception:
            log.exception("handing over failed in a way it should not")
        self._leave_behind("deadline")
        self._said.phase = "flushing"
        try:
            self._said.pending_blocks = await self._flush(max(end - loop.time(), 0.0))
        except Exception:
            log.exception("flushing failed in a way it should not")
        self._said.seconds = self._clock() - self._began
        self._said.phase = "done"
        log.info(
            "drained in %.1f s: %d blocks handed over, %d were elsewhere, left behind %s, %d not written",
            self._said.seconds,
            self._said.handed_blocks,
            self._said.safe_blocks,
            dict(self._left) or "none",
            self._said.pending_blocks,
        )
        if not stay:
            self._leave()

    async def _hand_over(self) -> None:
        if self.neighbours is not None:
            self.neighbours.set_draining()
        self._queue.extend(self._stock.hottest(UNLIMITED, last_only=True))
        if self.neighbours is None:
            self._leave_behind("alone")
            return
        others = self.neighbours.others(staying=True)
        await asyncio.gather(*(self._ask_for_room(self.neighbours, node) for node in others))
        if not self._free:
            self._leave_behind("nobody" if not others else "unreachable")
            return
        async with asyncio.TaskGroup() as group:
            for _ in range(GIVING):
                group.create_task(self._give_all(self.neighbours))

    async def _ask_for_room(self, neighbours: Neighbours, node: str) -> None:
        client = neighbours.client(node)
        if client is None:
            return
        asked = pb.TakeOverRequest(wire_version=SINCE_VERSION, node=neighbours.node)
        try:
            reply = await client.take_over(asked, timeout_s=ROOM_S)
        except PeerError as error:
            log.warning("%s cannot take anything over: %s", node, error)
            return
        if not reply.reason:
            self._free[node] = reply.free_bytes

    async def _give_all(self, neighbours: Neighbours) -> None:
        while self._queue:
            path = self._queue.popleft()
            try:
                why = await self._give(neighbours, path)
            except asyncio.CancelledError:
                self._queue.appendleft(path)
                raise
            if why:
                self._lost(path, why)

    async def _give(self, neighbours: Neighbours, path: Path) -> str:
        """To whoever takes it; "" or why nobody does."""
        keys = self._stock.keys(path)
        if not keys:
            return ""  # it has left meanwhile: nobody loses it by our leaving
        found = await neighbours.find(path.fingerprint, keys[path.first :], path.first, FIND_S)
        knowing = [each.node for each in found if each.node in self._free]
        why = self._nobody
        for node in (*knowing, *sorted(self._free.keys() - {*knowing}, key=lambda name: -self._free[name])):
            client = neighbours.client(node)
            if client is None:
                self._free.pop(node, None)
                continue
            reply = await self._offer(client, neighbours.node, node, path)
            if reply is None:
                self._free.pop(node, None)
                self._nobody = why = "unreachable"
                continue
            self._free[node] = reply.free_bytes
            if not reply.reason:
                self._given(path, node, reply.fetched)
                return ""
            why = reply.reason
            if why in {"draining", "full"}:  # what follows is colder
                self._free.pop(node, None)
                self._nobody = why
        return why

    async def _offer(self, client: PeerClient, mine: str, node: str, path: Path) -> pb.TakeOverReply | None:
        seconds = CALL_S + path.size_bytes / CALL_BYTES_S
        asked = pb.TakeOverRequest(wire_version=SINCE_VERSION, node=mine, path=pack_path(path), deadline_s=seconds)
        try:
            reply = await client.take_over(asked, timeout_s=seconds + ROOM_S)
            while reply.reason == "busy":
                await asyncio.sleep(BUSY_S)
                reply = await client.take_over(asked, timeout_s=seconds + ROOM_S)
        except PeerError as error:
            log.warning("%s takes nothing more over: %s", node, error)
            return None
        return reply

    def _given(self, path: Path, node: str, fetched: int) -> None:
        handed = min(fetched, path.blocks)
        self._said.safe_blocks += path.blocks - handed
        if handed:
            self._said.handed_blocks += handed
            self._said.handed_bytes += handed * path.namespace.layout.slot_bytes
            self._said.to[node] += handed

    def _leave_behind(self, why: str) -> None:
        """All that still waits."""
        while self._queue:
            self._lost(self._queue.popleft(), why)

    def _lost(self, path: Path, why: str) -> None:
        self._left[why] += path.blocks
        self._said.left_bytes += path.size_bytes
