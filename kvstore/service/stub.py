"""The generated gRPC code with types: it has none of its own."""

from typing import Any, cast

import grpc.aio

from ...proto import kv_pb2 as pb
from ...proto import kv_pb2_grpc

SessionCall = grpc.aio.StreamStreamCall[pb.ClientFrame, pb.ServerFrame]
TraceCall = grpc.aio.UnaryStreamCall[pb.TraceRequest, pb.TraceEvent]
DrainCall = grpc.aio.UnaryStreamCall[pb.DrainRequest, pb.DrainProgress]
EventsCall = grpc.aio.UnaryStreamCall[pb.EventsRequest, pb.EventBatch]
KVStoreServicer = kv_pb2_grpc.KVStoreServicer


def session_call(channel: grpc.aio.Channel) -> SessionCall:
    """A new, unopened Session stream."""
    return cast(SessionCall, _stub(channel).Session())


async def status_call(channel: grpc.aio.Channel, request: pb.StatusRequest, timeout_s: float) -> pb.StatusReply:
    """The unary Status. grpc.aio.AioRpcError when it fails."""
    return cast(pb.StatusReply, await _stub(channel).Status(request, timeout=timeout_s))


async def clear_call(channel: grpc.aio.Channel, request: pb.ClearRequest, timeout_s: float) -> pb.ClearReply:
    """The unary Clear. grpc.aio.AioRpcError when it fails."""
    return cast(pb.ClearReply, await _stub(channel).Clear(request, timeout=timeout_s))


async def retain_call(channel: grpc.aio.Channel, request: pb.RetainRequest, timeout_s: float) -> pb.RetainReply:
    """The unary Retain. grpc.aio.AioRpcError when it fails."""
    return cast(pb.RetainReply, await _stub(channel).Retain(request, timeout=timeout_s))


async def flush_call(channel: grpc.aio.Channel, request: pb.FlushRequest, timeout_s: float) -> pb.FlushReply:
    """The unary Flush. grpc.aio.AioRpcError when it fails."""
    return cast(pb.FlushReply, await _stub(channel).Flush(request, timeout=timeout_s))


async def quota_call(channel: grpc.aio.Channel, request: pb.QuotaRequest, timeout_s: float) -> pb.QuotaReply:
    """The unary SetQuota. grpc.aio.AioRpcError when it fails."""
    return cast(pb.QuotaReply, await _stub(channel).SetQuota(request, timeout=timeout_s))


def trace_call(channel: grpc.aio.Channel) -> TraceCall:
    """A new Trace stream."""
    return cast(TraceCall, _stub(channel).Trace(pb.TraceRequest()))


def drain_call(channel: grpc.aio.Channel, request: pb.DrainRequest, timeout_s: float) -> DrainCall:
    """A new Drain stream."""
    return cast(DrainCall, _stub(channel).Drain(request, timeout=timeout_s))


def events_call(channel: grpc.aio.Channel, request: pb.EventsRequest) -> EventsCall:
    """A new Events stream."""
    return cast(EventsCall, _stub(channel).Events(request))


async def score_call(channel: grpc.aio.Channel, request: pb.ScoreRequest, timeout_s: float) -> pb.ScoreReply:
    """The unary Score. grpc.aio.AioRpcError when it fails."""
    return cast(pb.ScoreReply, await _stub(channel).Score(request, timeout=timeout_s))


async def receipts_call(channel: grpc.aio.Channel, request: pb.ReceiptsRequest, timeout_s: float) -> pb.ReceiptsReply:
    """The unary Receipts. grpc.aio.AioRpcError when it fails."""
    return cast(pb.ReceiptsReply, await _stub(channel).Receipts(request, timeout=timeout_s))


async def explain_call(channel: grpc.aio.Channel, request: pb.ExplainRequest, timeout_s: float) -> pb.ExplainReply:
    """The unary Explain. grpc.aio.AioRpcError when it fails."""
    return cast(pb.ExplainReply, await _stub(channel).Explain(request, timeout=timeout_s))


async def prefixes_call(channel: grpc.aio.Channel, request: pb.PrefixesRequest, timeout_s: float) -> pb.PrefixesReply:
    """The unary Prefixes. grpc.aio.AioRpcError when it fails."""
    return cast(pb.PrefixesReply, await _stub(channel).Prefixes(request, timeout=timeout_s))


async def insight_call(channel: grpc.aio.Channel, request: pb.InsightRequest, timeout_s: float) -> pb.InsightReply:
    """The unary Insight. grpc.aio.AioRpcError when it fails."""
    return cast(pb.InsightReply, await _stub(channel).Insight(request, timeout=timeout_s))


async def warm_call(channel: grpc.aio.Channel, request: pb.WarmRequest, timeout_s: float) -> pb.WarmReply:
    """The unary Warm. grpc.aio.AioRpcError when it fails."""
    return cast(pb.WarmReply, await _stub(channel).Warm(request, timeout=timeout_s))


def add_servicer(servicer: KVStoreServicer, server: grpc.aio.Server) -> None:
    """Register `servicer` with `server`, before it starts."""
    generated: Any = kv_pb2_grpc
    generated.add_KVStoreServicer_to_server(servicer, server)


def _stub(channel: grpc.aio.Channel) -> Any:
    return kv_pb2_grpc.KVStoreStub(channel)
