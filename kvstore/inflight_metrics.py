"""Prometheus metrics of requests that wait for what others compute."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from .stats import Counters

PREFIX = "kvterrace_inflight_"


def inflight_metrics(counters: Counters) -> Iterator[Metric]:
    """Of one picture of the store."""
    waits = CounterMetricFamily(
        PREFIX + "waits", "Requests that waited for what others computed, by what came of it.", labels=["outcome"]
    )
    for outcome, count in counters.inflight_waits.items():
        waits.add_metric([outcome], count)
    yield waits
    for name, text, value in (
        ("wait_seconds", "That these requests waited.", counters.inflight_wait_s),
        ("tokens", "Tokens that came while they waited.", counters.inflight_tokens),
        ("marks", "Promises to compute a prompt.", counters.inflight_marks),
        ("broken_marks", "Promises of which nothing came.", counters.inflight_broken),
    ):
        yield CounterMetricFamily(PREFIX + name, text, value=value)
