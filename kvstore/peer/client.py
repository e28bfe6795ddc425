"""PeerClient: asks one node for blocks, over gRPC. What it answers is input: read in order, sized before it is kept."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import grpc.aio

from ...proto import kv_pb2 as pb
from ...proto import kv_pb2_grpc
from ..security.credentials import Credentials
from ..service.channel import open_channel

OLD_CHANNEL_S = 60.0  # what its last calls may take

HottestCall = grpc.aio.UnaryStreamCall[pb.HottestRequest, pb.HotPath]
FetchCall = grpc.aio.UnaryStreamCall[pb.FetchRequest, pb.FetchPart]

_REASONS = {
    grpc.StatusCode.DEADLINE_EXCEEDED: "deadline",
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.UNIMPLEMENTED: "version",
    grpc.StatusCode.UNAUTHENTICATED: "denied",
    grpc.StatusCode.PERMISSION_DENIED: "denied",
}


class PeerError(Exception):
    """A peer did not answer as it should. reason: "deadline", "unreachable", "broken" (the call ended early), "busy",
    "version" (it speaks another one), "denied" (it does not let this node in), "refused", "protocol" (it answers what
    was not asked)."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason

    @property
    def sure(self) -> bool:
        """Whether asking again must end the same."""
        return self.reason in ("version", "denied")


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
    """Asks the node at a gRPC address; dials on first use, and anew once `credentials`, what it shows there, have
    changed. dial: makes a channel. ValueError for what cannot be an address."""

    def __init__(
        self,
        address: str,
        credentials: Credentials | None = None,
        dial: Callable[[str, Credentials | None], grpc.aio.Channel] = open_channel,
    ) -> None:
        self.address = address
        self._credentials = credentials
        self._version: int = credentials.version if credentials is not None else 0
        self._dial = dial
        self._channel = dial(address, credentials)
        self._stub: Any = kv_pb2_grpc.KVStoreStub(self._channel)
        self._old: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def fetch(self, request: pb.FetchRequest, *, timeout_s: float) -> AsyncGenerator[Answer]:
        """One call. It is over when the block ends, however it ends."""
        self._renew()
        call = cast(FetchCall, self._stub.Fetch(request, timeout=timeout_s))
        try:
            yield Answer(call)
        finally:
            call.cancel()

    async def take_over(self, request: pb.TakeOverRequest, *, timeout_s: float) -> pb.TakeOverReply:
        """Have it fetch blocks from who asks. PeerError."""
        self._renew()
        try:
            return cast(pb.TakeOverReply, await self._stub.TakeOver(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise PeerError(_REASONS.get(error.code(), "broken"), error.details() or "") from None

    async def score(self, request: pb.ScoreRequest, *, timeout_s: float) -> pb.ScoreReply:
        """How much of a prompt it has. PeerError."""
        self._renew()
        try:
            return cast(pb.ScoreReply, await self._stub.Score(request, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            raise PeerError(_REASONS.get(error.code(), "broken"), error.details() or "") from None

    @asynccontextmanager
    async def hottest(
        self, request: pb.HottestRequest, *, timeout_s: float
    ) -> AsyncGenerator[AsyncGenerator[pb.HotPath]]:
        """What it used most. PeerError while it is read."""
        self._renew()
        call = cast(HottestCall, self._stub.Hottest(request, timeout=timeout_s))

        async def paths() -> AsyncGenerator[pb.HotPath]:
            try:
                while isinstance(said := cast(object, await call.read()), pb.HotPath):
                    yield said
            except grpc.aio.AioRpcError as error:
                raise PeerError(_REASONS.get(error.code(), "broken"), error.details() or "") from None

        try:
            yield paths()
        finally:
            call.cancel()

    def _renew(self) -> None:
        """Calls under way end on the channel that they began on."""
        if self._credentials is None or self._credentials.version == self._version:
            return
        self._version = self._credentials.version
        closing = asyncio.get_running_loop().create_task(self._channel.close(OLD_CHANNEL_S))
        self._old.add(closing)
        closing.add_done_callback(self._old.discard)
        self._channel = self._dial(self.address, self._credentials)
        self._stub = kv_pb2_grpc.KVStoreStub(self._channel)

    async def close(self) -> None:
        """End every call; whoever still reads one is cancelled. Closing twice is harmless."""
        await self._channel.close()
        for closing in set(self._old):
            closing.cancel()


def _refusal(refused: pb.Refused) -> PeerError:
    reason = {"wire_version": "version", "busy": "busy"}.get(refused.field, "refused")
    return PeerError(reason, f"{refused.field}: {refused.message}"[:300])
