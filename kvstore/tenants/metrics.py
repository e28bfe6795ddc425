"""Prometheus metrics of tenants, read from `Store.stats()` at each scrape. Nothing where nobody shares the store."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .tenants import TIERS, TenantStats

PREFIX = "kvterrace_tenant_"
_COUNTERS: tuple[tuple[str, str, Callable[[TenantStats], int]], ...] = (
    ("hit_tokens", "Tokens leased to the tenant's readers.", lambda tenant: tenant.hit_tokens),
    ("miss_tokens", "Tokens of full blocks it asked for that were not found.", lambda tenant: tenant.miss_tokens),
)


class TenantCollector(Collector):
    """Asks `tenants` at each scrape. The default tenant has the label "default", shared heads have "*"."""

    def __init__(self, tenants: Callable[[], tuple[TenantStats, ...]]) -> None:
        self._tenants = tenants

    def collect(self) -> Iterator[Metric]:
        """All metrics, from one picture."""
        tenants = self._tenants()
        if not tenants:
            return
        for name, text, read in _COUNTERS:
            counter = CounterMetricFamily(PREFIX + name, text, labels=["tenant"])
            for tenant in tenants:
                counter.add_metric([shown(tenant.name)], read(tenant))
            yield counter
        sessions = GaugeMetricFamily(PREFIX + "sessions", "Open sessions.", labels=["tenant"])
        for tenant in tenants:
            sessions.add_metric([shown(tenant.name)], tenant.sessions)
        yield sessions
        used = GaugeMetricFamily(PREFIX + "used_bytes", "What its blocks take.", labels=["tenant", "tier"])
        quota = GaugeMetricFamily(PREFIX + "quota_bytes", "What they may take at most.", labels=["tenant", "tier"])
        floor = GaugeMetricFamily(PREFIX + "floor_bytes", "What others cannot take.", labels=["tenant", "tier"])
        for tenant in tenants:
            for tier in TIERS:
                labels = [shown(tenant.name), tier]
                used.add_metric(labels, tenant.used[tier])
                floor.add_metric(labels, getattr(tenant.limits, f"{tier}_floor"))
                limit = getattr(tenant.limits, f"{tier}_quota")
                if limit is not None:
                    quota.add_metric(labels, limit)
        yield from (used, quota, floor)


def shown(name: str) -> str:
    """A tenant's name for people."""
    return name or "default"
