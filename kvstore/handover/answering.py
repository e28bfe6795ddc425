"""Answering: this node's side of what another one asks when it starts or leaves. FrameError for what makes no sense."""

import math
from collections.abc import Iterator

from ...proto import FieldError
from ...proto import kv_pb2 as pb
from ..service.frames import MIN_WIRE_VERSION, WIRE_VERSION, FrameError
from .neighbours import Neighbours
from .paths import MAX_NAME_CHARS, Path, pack_path, unpack_path
from .stock import Stock, Taken

MAX_TAKING = 8  # at once
MAX_DEADLINE_S = 600.0


class Answering:
    """Answers Hottest and TakeOver."""

    def __init__(self, stock: Stock, neighbours: Neighbours) -> None:
        self._stock = stock
        self._neighbours = neighbours
        self._taking = 0

    def hottest(self, request: pb.HottestRequest) -> Iterator[pb.HotPath]:
        """What is hottest here, replicas too."""
        _check(request.wire_version, request.node)
        for path in self._stock.hottest(request.max_bytes, last_only=False):
            yield pack_path(path)

    async def take_over(self, request: pb.TakeOverRequest) -> pb.TakeOverReply:
        """Fetch a path from who asks, a member as this node knows it; its address is not taken from the message."""
        _check(request.wire_version, request.node)
        if not (math.isfinite(request.deadline_s) and 0 <= request.deadline_s <= MAX_DEADLINE_S):
            raise FrameError("deadline_s", f"must be between 0 and {MAX_DEADLINE_S:.0f}")
        taken = Taken(0, 0, "draining" if self._stock.draining else "")
        if request.HasField("path") and not taken.reason:
            try:
                path = unpack_path(request.path)
            except FieldError as error:
                raise FrameError(error.field, error.message) from None
            taken = await self._take(path, request.node, request.deadline_s)
        return pb.TakeOverReply(
            blocks=taken.blocks, fetched=taken.fetched, free_bytes=self._stock.free_bytes(), reason=taken.reason
        )

    async def _take(self, path: Path, node: str, deadline_s: float) -> Taken:
        if self._taking >= MAX_TAKING:
            return Taken(0, 0, "busy")
        tier = self._neighbours.tier(node)
        if tier is None:
            return Taken(0, 0, "node")
        self._taking += 1
        try:
            return await self._stock.take(path, node, tier, deadline_s=deadline_s)
        finally:
            self._taking -= 1


def _check(version: int, node: str) -> None:
    if not MIN_WIRE_VERSION <= version <= WIRE_VERSION:
        spoken = f"versions {MIN_WIRE_VERSION} to {WIRE_VERSION} are spoken here"
        raise FrameError("wire_version", f"{spoken}, not {version}")
    if not 0 < len(node) <= MAX_NAME_CHARS:
        raise FrameError("node", f"must have 1 to {MAX_NAME_CHARS} characters")
