"""PeerClient: asks one node for blocks, over gRPC. What it answers is input: read in order, sized before it is kept."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio

from ...proto import kv_pb2 as pb
from ...proto import kv_pb2_grpc
from ..service.channel import open_channel

FetchCall = grpc.aio.UnaryStreamCall[pb.FetchRequest, pb.FetchPart]

_REASONS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline",
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.UNIMPLEMENTED: "version",
}


class PeerError(Exception):
    """A peer did not answer as it should. reason: "deadline", "unreachable", "broken" (the call ended early), "busy",
    "version" (it speaks another one), "refused", "protocol" (it answers what was not asked)."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason

    @property
    def sure(self) -> bool:
        """Whether asking again must end the same."""
        return self.reason == "version"


class Answer:
    """The parts of one answer, in order: the offer, then perhaps the bytes."""

    def __init__(self, call: FetchCall) -> None:
        self._call = call

    async def offer(self) -> pb.Offer:
        """The first part. PeerError for anything but an offer."""
        part = await self._read()
        if part is None:
            raise PeerError("broken", "no answer")
        if part.HasField("refused"):
            raise _refusal(part.refused)
        if not part.HasField("offer"):
            raise PeerError("protocol", "the first part is no offer")
        return part.offer

    async def read_into(self, views: Sequence[memoryview]) -> None:
        """Fill the views, one after the other, with the rest of the answer, which must be as long as they are."""
        flat = iter(views)
        left = memoryview(b"")
        while (part := await self._read()) is not None:
            if not part.HasField("chunk"):
                raise PeerError("protocol", "a part is no chunk")
            data = memoryview(part.chunk.data)
            while data:
                left = left or next(flat, left)
                if not left:
                    raise PeerError("protocol", "more bytes than were offered")
                size = min(len(left), len(data))
                left[:size] = data[:size]
                left, data = left[size:], data[size:]
        if left or next(flat, None) is not None:
            raise PeerError("broken", "fewer bytes than were offered")

    async def _read(self) -> pb.FetchPart | None:
        try:
            part = cast(object, await self._call.read())
        except grpc.aio.AioRpcError as error:
            raise PeerError(_REASONS.get(error.code(), "broken"), error.details() or "") from None
        return part if isinstance(part, pb.FetchPart) else None  # else grpc.aio.EOF


class PeerClient:
    """Asks the node at a gRPC address; dials on first use. ValueError for what cannot be an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = open_channel(address)
        self._stub: Any = kv_pb2_grpc.KVStoreStub(self._channel)

    @asynccontextmanager
    async def fetch(self, request: pb.FetchRequest, *, timeout_s: float) -> AsyncGenerator[Answer]:
        """One call. It is over when the block ends, however it ends."""
        call = cast(FetchCall, self._stub.Fetch(request, timeout=timeout_s))
        try:
            yield Answer(call)
        finally:
            call.cancel()

    async def close(self) -> None:
        """End every call; whoever still reads one is cancelled. Closing twice is harmless."""
        await self._channel.close()


def _refusal(refused: pb.Refused) -> PeerError:
    reason = {"wire_version": "version", "busy": "busy"}.get(refused.field, "refused")
    return PeerError(reason, f"{refused.field}: {refused.message}"[:300])
