"""Warming: what a node that starts takes from the others before it says that it is ready.

Each is asked what it used most; of all that, the hottest is fetched first, until there is enough, no room, or no time.
Nobody who is dead or hangs keeps a node from becoming ready. On the store's loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...proto import FieldError
from ...proto import kv_pb2 as pb
from ..peer.client import PeerError
from ..service.frames import FrameError
from ..status_view import format_bytes
from .neighbours import SINCE_VERSION, Neighbours
from .paths import MAX_PATHS, Path, unpack_path
from .stock import Stock

log = logging.getLogger(__name__)

MOST_ASKED = 16  # nodes
MAX_TOKEN_BYTES = 64 << 20  # of the prompts that one node names
ASK_SHARE, MAX_ASK_S = 0.25, 10.0  # of the deadline for the question
TAKING = 4  # paths at once
PATH_S = 10.0


@dataclass(slots=True)
class _Offer:
    path: Path
    nodes: list[str] = field(default_factory=list[str])


class Warming:
    """max_bytes: what it may bring. Call run() once."""

    def __init__(self, stock: Stock, neighbours: Neighbours, *, max_bytes: int, deadline_s: float) -> None:
        self._stock = stock
        self._neighbours = neighbours
        self._max_bytes = max_bytes
        self._deadline_s = deadline_s
        self.taken_bytes = 0
        self._coming_bytes = 0
        self.over = False

    def progress(self) -> str:
        """For people; "" once it is over."""
        return "" if self.over else f"{format_bytes(self.taken_bytes)} of {format_bytes(self._max_bytes)}"

    async def run(self) -> None:
        """Until there is enough, nobody has more, or the deadline. Never raises but for a cancellation."""
        try:
            async with asyncio.timeout(self._deadline_s):
                offers = await self._ask_all()
                queue = deque(offers)
                async with asyncio.TaskGroup() as group:
                    for _ in range(TAKING):
                        group.create_task(self._take_all(queue))
        except TimeoutError:
            log.warning("warm start: not all came within %.0f s", self._deadline_s)
        except Exception:
            log.exception("warm start failed in a way it should not")
        finally:
            self.over = True
            log.info("warm start: %s from other nodes", format_bytes(self.taken_bytes))

    async def _ask_all(self) -> list[_Offer]:
        """What they have, hottest first, each path once."""
        others = self._neighbours.others(staying=False)[:MOST_ASKED]
        within_s = min(ASK_SHARE * self._deadline_s, MAX_ASK_S)
        answers = await asyncio.gather(*(self._ask(node, within_s) for node in others))
        offers: dict[tuple[bytes, bytes], _Offer] = {}
        for node, paths in zip(others, answers, strict=True):
            for path in paths:
                known = offers.setdefault((path.fingerprint, path.tokens), _Offer(path))
                known.nodes.append(node)
                if path.heat > known.path.heat:
                    known.path = path
        return sorted(offers.values(), key=lambda each: -each.path.heat)

    async def _ask(self, node: str, within_s: float) -> Sequence[Path]:
        client = self._neighbours.client(node)
        paths: list[Path] = []
        if client is None:
            return paths
        size = token_bytes = 0
        asked = pb.HottestRequest(wire_version=SINCE_VERSION, node=self._neighbours.node, max_bytes=self._max_bytes)
        try:
            async with client.hottest(asked, timeout_s=within_s) as answers:
                async for said in answers:
                    path = unpack_path(said)
                    size, token_bytes = size + path.size_bytes, token_bytes + len(path.tokens)
                    if len(paths) >= MAX_PATHS or size > self._max_bytes or token_bytes > MAX_TOKEN_BYTES:
                        break
                    paths.append(path)
        except (PeerError, FrameError, FieldError) as error:
            log.warning("warm start: %s said only %d paths: %s", node, len(paths), error)
        return paths

    async def _take_all(self, queue: deque[_Offer]) -> None:
        while queue and self.taken_bytes < self._max_bytes:
            offer = queue.popleft()
            path = offer.path
            if self.taken_bytes + self._coming_bytes + path.size_bytes > self._max_bytes:
                continue
            self._coming_bytes += path.size_bytes
            try:
                if await self._take(offer) == "full":
                    queue.clear()  # what follows is colder
            finally:
                self._coming_bytes -= path.size_bytes

    async def _take(self, offer: _Offer) -> str:
        """From the first who gives it; "" or why none does."""
        why, path = "unreachable", offer.path
        for node in offer.nodes:
            tier = self._neighbours.tier(node)
            if tier is None:
                continue
            taken = await self._stock.take(path, node, tier, deadline_s=min(PATH_S, self._deadline_s))
            self.taken_bytes += taken.fetched * path.namespace.layout.slot_bytes
            why = taken.reason
            if why in {"", "full"}:
                break
        return why
