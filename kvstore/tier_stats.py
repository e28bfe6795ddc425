"""Lines of a store's statistics: of the tier below DRAM, and of namespaces."""

from collections.abc import Iterator

from .depot import Depot
from .placement.cost import IoCost, TierCost
from .residents import Residents
from .stats import NamespaceStats, TierStats


def depot_stats(depot: Depot, io: IoCost, pending_bytes: int) -> Iterator[TierStats]:
    """Of the tier below, if there is one. pending_bytes: that wait to be written."""
    if not depot.present:
        return
    usage, cost = depot.tier.usage(), io.tiers("read").get(depot.name, TierCost())
    yield TierStats(
        name=depot.name,
        capacity_bytes=usage.capacity_bytes,
        used_bytes=usage.used_bytes,
        leased_bytes=0,
        reserved_bytes=pending_bytes,
        blocks=usage.blocks,
        pinned_blocks=sum(each.index.pinned for each in depot.catalogs()),
        devices=tuple(depot.tier.devices()),
        codec=depot.tier.codec(),
        latency_s=cost.latency_s,
        bytes_per_s=cost.bytes_per_s,
    )


def namespace_stats(space: Residents) -> NamespaceStats:
    """Of one namespace."""
    return NamespaceStats(
        fingerprint=space.fingerprint,
        tenant=space.tenant.name if space.tenant is not None else "",
        label=space.namespace.label,
        slot_bytes=space.size_class.slot_bytes,
        blocks=len(space.index),
        bytes=len(space.index) * space.size_class.slot_bytes,
        hit_tokens=space.hit_tokens,
        miss_tokens=space.miss_tokens,
        sessions=space.sessions,
    )
