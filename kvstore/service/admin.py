"""The operators' calls to a sidecar, each on a channel of its own. All raise NoSidecar, CallRefused, ValueError."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import grpc
import grpc.aio

from ...proto import Retention
from ...proto import kv_pb2 as pb
from ..errors import KvterraceError
from .channel import Address, open_channel
from .stub import (
    clear_call,
    explain_call,
    flush_call,
    insight_call,
    prefixes_call,
    quota_call,
    receipts_call,
    retain_call,
    score_call,
    status_call,
    warm_call,
)


class NoSidecar(KvterraceError):
    """Nobody answers at the address."""


class CallRefused(KvterraceError):
    """The sidecar answers, and says that the request is wrong."""


class CallDenied(CallRefused):
    """The caller may not make this call."""


T = TypeVar("T")


async def fetch_status(address: Address, *, check: bool, timeout_s: float) -> pb.StatusReply:
    """What the sidecar at `address` holds; with `check`, after a recount."""
    return await _call(address, lambda to: status_call(to, pb.StatusRequest(check=check), timeout_s), timeout_s)


async def clear_store(address: Address, fingerprint: bytes, *, timeout_s: float, tenant: str = "") -> int:
    """Drop one namespace's blocks (b"": all, or all of that tenant's), in every tier; how many they were."""
    asked = pb.ClearRequest(fingerprint=fingerprint, tenant=tenant)
    return (await _call(address, lambda to: clear_call(to, asked, timeout_s), timeout_s)).blocks


async def clear_blocks(address: Address, asked: pb.ClearRequest, *, timeout_s: float) -> pb.ClearReply:
    """Drop what the request means; how much it was."""
    return await _call(address, lambda to: clear_call(to, asked, timeout_s), timeout_s)


async def set_quota(address: Address, asked: pb.QuotaRequest, *, timeout_s: float) -> pb.TenantStatus:
    """Set a tenant's limits; what they are then."""
    return (await _call(address, lambda to: quota_call(to, asked, timeout_s), timeout_s)).tenant


async def retain_blocks(
    address: Address, fingerprint: bytes, tokens: bytes, wish: Retention, fields: Sequence[str], *, timeout_s: float
) -> int:
    """Set these fields of the retention of a prefix (b"": of the whole namespace); how many blocks it has."""
    said = pb.RetentionSpec(priority=wish.priority, ttl_s=wish.ttl_s, pinned=wish.pinned)
    asked = pb.RetainRequest(fingerprint=fingerprint, tokens=tokens, retention=said, set=fields)
    return (await _call(address, lambda to: retain_call(to, asked, timeout_s), timeout_s)).blocks


async def retain(address: Address, asked: pb.RetainRequest, *, timeout_s: float) -> pb.RetainReply:
    """Set what blocks are worth keeping; how many they are."""
    return await _call(address, lambda to: retain_call(to, asked, timeout_s), timeout_s)


async def flush_store(address: Address, *, deadline_s: float, timeout_s: float) -> pb.FlushReply:
    """Have the sidecar write what waits for the lower tier, within deadline_s."""
    asked = pb.FlushRequest(deadline_s=deadline_s)
    return await _call(address, lambda to: flush_call(to, asked, deadline_s + timeout_s), deadline_s + timeout_s)


async def fetch_scores(address: Address, request: pb.ScoreRequest, *, timeout_s: float) -> pb.ScoreReply:
    """How much of a prompt the nodes and engines have."""
    return await _call(address, lambda to: score_call(to, request, timeout_s), timeout_s)


async def fetch_receipts(address: Address, request: pb.ReceiptsRequest, *, timeout_s: float) -> pb.ReceiptsReply:
    """What the last requests got."""
    return await _call(address, lambda to: receipts_call(to, request, timeout_s), timeout_s)


async def fetch_explanation(address: Address, request: pb.ExplainRequest, *, timeout_s: float) -> pb.ExplainReply:
    """What a prompt would hit now."""
    return await _call(address, lambda to: explain_call(to, request, timeout_s), timeout_s)


async def fetch_prefixes(address: Address, request: pb.PrefixesRequest, *, timeout_s: float) -> pb.PrefixesReply:
    """Which prefixes are stored."""
    return await _call(address, lambda to: prefixes_call(to, request, timeout_s), timeout_s)


async def fetch_insight(address: Address, request: pb.InsightRequest, *, timeout_s: float) -> pb.InsightReply:
    """What the traffic says."""
    return await _call(address, lambda to: insight_call(to, request, timeout_s), timeout_s)


async def warm_prompt(address: Address, request: pb.WarmRequest, *, timeout_s: float) -> pb.WarmReply:
    """Have a prompt brought up to DRAM, within the request's deadline."""
    timeout_s += request.deadline_s
    return await _call(address, lambda to: warm_call(to, request, timeout_s), timeout_s)


async def _call(address: Address, call: Callable[[grpc.aio.Channel], Awaitable[T]], timeout_s: float) -> T:
    async with open_channel(address) as channel:
        try:
            return await call(channel)
        except grpc.aio.AioRpcError as error:
            raise explain(error, address, timeout_s) from None


def explain(error: grpc.aio.AioRpcError, address: Address, timeout_s: float) -> KvterraceError:
    """As an error for people."""
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        why = error.details() or ""
        if "handshake" in why.lower() or "certificate" in why.lower():
            return NoSidecar(f"no TLS connection to {address}: {why[:300]}")
        return NoSidecar(f"no sidecar answers at {address}; is `kvterrace serve` running there?")
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoSidecar(f"the sidecar at {address} took the call, but has not answered within {timeout_s:g} s")
    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
        return CallDenied(f"{address} asks who calls: {error.details()}; see --token-file and --tls-cert")
    if error.code() is grpc.StatusCode.PERMISSION_DENIED:
        return CallDenied(error.details() or error.code().name)
    return CallRefused(error.details() or error.code().name)
