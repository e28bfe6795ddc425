"""A store's statistics as the reply to Status."""

from dataclasses import asdict, fields
from typing import Any

from ...proto import kv_pb2 as pb
from ..stats import Counters, StoreStats
from ..tiers.nvme.types import DeviceStats
from .tenants import tenant_status


def status_reply(stats: StoreStats) -> pb.StatusReply:
    """All that `stats` says; what the server adds of its own is left empty."""
    return pb.StatusReply(
        tiers=[
            pb.TierStatus(
                name=tier.name,
                capacity_bytes=tier.capacity_bytes,
                used_bytes=tier.used_bytes,
                leased_bytes=tier.leased_bytes,
                reserved_bytes=tier.reserved_bytes,
                blocks=tier.blocks,
                pinned_blocks=tier.pinned_blocks,
                devices=[_device(each) for each in tier.devices],
                codec=pb.CodecStatus(**asdict(tier.codec)) if tier.codec is not None else None,
                latency_s=tier.latency_s,
                bytes_per_s=tier.bytes_per_s,
            )
            for tier in stats.tiers
        ],
        namespaces=[
            pb.NamespaceStatus(
                fingerprint=space.fingerprint,
                label=space.label,
                slot_bytes=space.slot_bytes,
                blocks=space.blocks,
                bytes=space.bytes,
                hit_tokens=space.hit_tokens,
                miss_tokens=space.miss_tokens,
                sessions=space.sessions,
                tenant=space.tenant,
            )
            for space in stats.namespaces
        ],
        sessions=[
            pb.SessionStatus(
                id=session.id,
                client=session.client,
                fingerprint=session.fingerprint,
                read_leases=session.read_leases,
                reserved_slots=session.reserved_slots,
            )
            for session in stats.sessions
        ],
        counters=_counters(stats.counters),
        tenants=[tenant_status(each) for each in stats.tenants],
    )


def _device(stats: DeviceStats) -> pb.DeviceStatus:
    return pb.DeviceStatus(**asdict(stats))


def _counters(counters: Counters) -> pb.Counters:
    # Not asdict(), which takes a Counter apart. What the message lacks is for metrics alone.
    told: set[str] = set(pb.Counters.DESCRIPTOR.fields_by_name)
    values: dict[str, Any] = {each.name: getattr(counters, each.name) for each in fields(Counters) if each.name in told}
    return pb.Counters(**values)
