"""The operators' two calls to a sidecar, each on a channel of its own."""

import grpc
import grpc.aio

from ...proto import kv_pb2 as pb
from ..errors import KvterraceError
from .channel import open_channel
from .stub import clear_call, status_call


class NoSidecar(KvterraceError):
    """Nobody answers at the address."""


class CallRefused(KvterraceError):
    """The sidecar answers, and says that the request is wrong."""


async def fetch_status(address: str, *, check: bool, timeout_s: float) -> pb.StatusReply:
    """What the sidecar at `address` holds; with `check`, after a recount. NoSidecar, CallRefused, ValueError."""
    async with open_channel(address) as channel:
        try:
            return await status_call(channel, pb.StatusRequest(check=check), timeout_s)
        except grpc.aio.AioRpcError as error:
            raise _explain(error, address, timeout_s) from None


async def clear_store(address: str, fingerprint: bytes, *, timeout_s: float) -> int:
    """Drop one namespace's blocks (b"": all); how many they were. NoSidecar, CallRefused, ValueError."""
    async with open_channel(address) as channel:
        try:
            return (await clear_call(channel, pb.ClearRequest(fingerprint=fingerprint), timeout_s)).blocks
        except grpc.aio.AioRpcError as error:
            raise _explain(error, address, timeout_s) from None


def _explain(error: grpc.aio.AioRpcError, address: str, timeout_s: float) -> KvterraceError:
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return NoSidecar(f"no sidecar answers at {address}; is `kvterrace serve` running there?")
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoSidecar(f"the sidecar at {address} took the call, but has not answered within {timeout_s:g} s")
    return CallRefused(error.details() or error.code().name)
