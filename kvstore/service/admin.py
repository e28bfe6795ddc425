"""The operators' calls to a sidecar, each on a channel of its own. All raise NoSidecar, CallRefused, ValueError."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc
import grpc.aio

from ...proto import Retention
from ...proto import kv_pb2 as pb
from ..errors import KvterraceError
from .channel import open_channel
from .stub import clear_call, flush_call, retain_call, status_call


class NoSidecar(KvterraceError):
    """Nobody answers at the address."""


class CallRefused(KvterraceError):
    """The sidecar answers, and says that the request is wrong."""


T = TypeVar("T")


async def fetch_status(address: str, *, check: bool, timeout_s: float) -> pb.StatusReply:
    """What the sidecar at `address` holds; with `check`, after a recount."""
    return await _call(address, lambda to: status_call(to, pb.StatusRequest(check=check), timeout_s), timeout_s)


async def clear_store(address: str, fingerprint: bytes, *, timeout_s: float) -> int:
    """Drop one namespace's blocks (b"": all), in every tier; how many they were."""
    asked = pb.ClearRequest(fingerprint=fingerprint)
    return (await _call(address, lambda to: clear_call(to, asked, timeout_s), timeout_s)).blocks


async def retain_blocks(
    address: str, fingerprint: bytes, tokens: bytes, wish: Retention, fields: Sequence[str], *, timeout_s: float
) -> int:
    """Set these fields of the retention of a prefix (b"": of the whole namespace); how many blocks it has."""
    said = pb.RetentionSpec(priority=wish.priority, ttl_s=wish.ttl_s, pinned=wish.pinned)
    asked = pb.RetainRequest(fingerprint=fingerprint, tokens=tokens, retention=said, set=fields)
    return (await _call(address, lambda to: retain_call(to, asked, timeout_s), timeout_s)).blocks


async def flush_store(address: str, *, deadline_s: float, timeout_s: float) -> pb.FlushReply:
    """Have the sidecar write what waits for the lower tier, within deadline_s."""
    asked = pb.FlushRequest(deadline_s=deadline_s)
    return await _call(address, lambda to: flush_call(to, asked, deadline_s + timeout_s), deadline_s + timeout_s)


async def _call(address: str, call: Callable[[grpc.aio.Channel], Awaitable[T]], timeout_s: float) -> T:
    async with open_channel(address) as channel:
        try:
            return await call(channel)
        except grpc.aio.AioRpcError as error:
            raise _explain(error, address, timeout_s) from None


def _explain(error: grpc.aio.AioRpcError, address: str, timeout_s: float) -> KvterraceError:
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        return NoSidecar(f"no sidecar answers at {address}; is `kvterrace serve` running there?")
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoSidecar(f"the sidecar at {address} took the call, but has not answered within {timeout_s:g} s")
    return CallRefused(error.details() or error.code().name)
