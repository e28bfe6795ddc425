"""A store's statistics as the reply to Status."""

from ...proto import kv_pb2 as pb
from ..stats import CounterStats, StoreStats


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
    )


def _counters(counters: CounterStats) -> pb.Counters:
    return pb.Counters(
        hit_tokens=dict(counters.hit_tokens),
        miss_tokens=dict(counters.miss_tokens),
        evictions=dict(counters.evictions),
        evictions_reused=dict(counters.evictions_reused),
        dropped_saves=dict(counters.dropped_saves),
        committed_blocks=counters.committed_blocks,
        duplicate_blocks=counters.duplicate_blocks,
        checksum_failures=counters.checksum_failures,
        acquires=counters.acquires,
        sessions_opened=counters.sessions_opened,
    )
