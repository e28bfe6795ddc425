"""Prometheus metrics of the edge, read at each scrape."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from .setup import Security

PREFIX = "kvterrace_security_"


class SecurityCollector(Collector):
    """Of one node."""

    def __init__(self, security: Security) -> None:
        self._security = security

    def collect(self) -> Iterator[Metric]:
        guard, audit = self._security.guard, self._security.audit
        failures = CounterMetricFamily(PREFIX + "refused_calls", "By why the caller was refused.", labels=["reason"])
        for reason, count in guard.failures.items():
            failures.add_metric([reason], count)
        yield failures
        yield CounterMetricFamily(PREFIX + "audit_records", "Administrative calls.", value=audit.records)
        yield CounterMetricFamily(
            PREFIX + "audit_failures", "Records that the audit file did not take.", value=audit.failures
        )
