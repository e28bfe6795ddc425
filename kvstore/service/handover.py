"""The calls by which nodes hand blocks over, and by which an operator has one leave. Part of the Servicer."""

import math
from collections.abc import Callable

import grpc
import grpc.aio

from ...proto import kv_pb2 as pb
from ..handover.answering import Answering
from ..handover.drain import Drain as Leaving
from .frames import FrameError
from .stream import MAX_DEADLINE_S
from .stub import KVStoreServicer

TakeOverContext = grpc.aio.ServicerContext[pb.TakeOverRequest, pb.TakeOverReply]
HottestContext = grpc.aio.ServicerContext[pb.HottestRequest, pb.HotPath]
DrainContext = grpc.aio.ServicerContext[pb.DrainRequest, pb.DrainProgress]


class HandoverCalls(KVStoreServicer):
    """See the module."""

    answering: Answering | None = None
    """What other nodes are answered with; None while this is no node of a cluster."""
    leaving: Leaving | None = None
    """How this process leaves; None: it cannot be asked to."""
    cluster_status: Callable[[], pb.ClusterStatus] | None = None
    """None while this is no node of a cluster."""

    async def Hottest(self, request: pb.HottestRequest, context: HottestContext) -> None:
        """What is hottest here, for a node that starts."""
        if self.answering is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this store is in no cluster")
        try:
            for path in self.answering.hottest(request):
                await context.write(path)
        except FrameError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def TakeOver(self, request: pb.TakeOverRequest, context: TakeOverContext) -> pb.TakeOverReply:
        """Fetch from a node that will leave."""
        if self.answering is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this store is in no cluster")
        try:
            return await self.answering.take_over(request)
        except FrameError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))

    async def Drain(self, request: pb.DrainRequest, context: DrainContext) -> None:
        """Leave, and say how it goes until it is done."""
        if self.leaving is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this store belongs to an engine and leaves with it")
        if not (math.isfinite(request.deadline_s) and 0 <= request.deadline_s <= MAX_DEADLINE_S):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"deadline_s: must be between 0 and {MAX_DEADLINE_S:.0f}"
            )
        self.leaving.begin(request.deadline_s, stay=request.stay)
        async for progress in self.leaving.watch():
            await context.write(progress)

    def describe_handover(self, reply: pb.StatusReply) -> None:
        """Add what a status says of the cluster and of leaving."""
        if self.cluster_status is not None:
            reply.cluster.CopyFrom(self.cluster_status())
        if self.leaving is not None and self.leaving.begun:
            reply.drain.CopyFrom(self.leaving.progress())
