"""Tenants at the gRPC edge: their limits set, their use told."""

import grpc

from ...proto import kv_pb2 as pb
from ..errors import ConfigError, SessionRefused
from ..store import Store
from ..tenants.tenants import TenantStats
from .keeping import BadRequest

_QUOTAS, _FLOORS = ("dram_quota", "nvme_quota"), ("dram_floor", "nvme_floor")
FIELDS = (*_QUOTAS, *_FLOORS)


def set_quota(store: Store, request: pb.QuotaRequest) -> pb.QuotaReply:
    """Carry it out. BadRequest."""
    if not request.set or not set(request.set) <= set(FIELDS):
        raise BadRequest(grpc.StatusCode.INVALID_ARGUMENT, f"set: must name some of {', '.join(FIELDS)}")
    wish: dict[str, int | None] = {name: getattr(request, name) for name in request.set}
    wish |= {name: wish[name] or None for name in _QUOTAS if name in wish}
    try:
        return pb.QuotaReply(tenant=tenant_status(store.tenancy.limit(request.tenant, **wish)))
    except SessionRefused as error:
        raise BadRequest(grpc.StatusCode.NOT_FOUND, str(error)) from None
    except ConfigError as error:
        raise BadRequest(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None


def tenant_status(stats: TenantStats) -> pb.TenantStatus:
    """For Status, and for the reply to SetQuota."""
    limits = stats.limits
    return pb.TenantStatus(
        name=stats.name,
        used_bytes=stats.used,
        dram_quota=limits.dram_quota,
        dram_floor=limits.dram_floor,
        nvme_quota=limits.nvme_quota,
        nvme_floor=limits.nvme_floor,
        hit_tokens=stats.hit_tokens,
        miss_tokens=stats.miss_tokens,
        sessions=stats.sessions,
    )
