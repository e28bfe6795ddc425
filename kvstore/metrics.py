"""Prometheus metrics of a store, read from `Store.stats()` at each scrape: nothing is counted twice, nothing is stale.

Counters in tokens, blocks and bytes, never ratios. Used on the store's own loop.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .stats import NamespaceStats, StoreStats, TierStats

PREFIX = "kvterrace_store_"

_LABELLED: tuple[tuple[str, str, str, Callable[[StoreStats], Mapping[str, int]]], ...] = (
    ("hit_tokens", "tier", "Tokens leased to readers.", lambda stats: stats.counters.hit_tokens),
    ("miss_tokens", "reason", "Tokens of full blocks asked for and not found.", lambda s: s.counters.miss_tokens),
    ("evicted_blocks", "reason", "Blocks that left the store.", lambda stats: stats.counters.evictions),
    (
        "evicted_reused_blocks",
        "reason",
        "Those of the evicted blocks that had been read at least once.",
        lambda stats: stats.counters.evictions_reused,
    ),
    ("dropped_save_blocks", "reason", "Blocks whose save was not taken.", lambda stats: stats.counters.dropped_saves),
)
_PLAIN: tuple[tuple[str, str, Callable[[StoreStats], int]], ...] = (
    ("committed_blocks", "Blocks made visible.", lambda stats: stats.counters.committed_blocks),
    ("duplicate_blocks", "Blocks committed when another had been first.", lambda s: s.counters.duplicate_blocks),
    ("checksum_failures", "Blocks that a reader found corrupt.", lambda stats: stats.counters.checksum_failures),
    ("acquires", "Requests for a prefix.", lambda stats: stats.counters.acquires),
    ("sessions_opened", "Sessions ever opened.", lambda stats: stats.counters.sessions_opened),
)
_TIER: tuple[tuple[str, str, Callable[[TierStats], int]], ...] = (
    ("tier_capacity_bytes", "Size of the tier.", lambda tier: tier.capacity_bytes),
    ("tier_used_bytes", "Slots that hold or await a block.", lambda tier: tier.used_bytes),
    ("tier_leased_bytes", "Used slots that may not be evicted now.", lambda tier: tier.leased_bytes),
    ("tier_reserved_bytes", "Slots being written.", lambda tier: tier.reserved_bytes),
)
_SPACE: tuple[tuple[str, str, Callable[[NamespaceStats], int]], ...] = (
    ("namespace_blocks", "Visible blocks.", lambda space: space.blocks),
    ("namespace_bytes", "Slots that visible blocks take.", lambda space: space.bytes),
    ("namespace_sessions", "Open sessions.", lambda space: space.sessions),
)
_SPACE_COUNTERS: tuple[tuple[str, str, Callable[[NamespaceStats], int]], ...] = (
    ("namespace_hit_tokens", "Tokens leased to readers.", lambda space: space.hit_tokens),
    ("namespace_miss_tokens", "Tokens of full blocks asked for and not found.", lambda space: space.miss_tokens),
)


class StoreCollector(Collector):
    """Asks `stats` at each scrape."""

    def __init__(self, stats: Callable[[], StoreStats]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """All metrics, from one picture of the store."""
        stats = self._stats()
        for name, label, text, read in _LABELLED:
            counter = CounterMetricFamily(PREFIX + name, text, labels=[label])
            for value, count in read(stats).items():
                counter.add_metric([value], count)
            yield counter
        for name, text, number in _PLAIN:
            yield CounterMetricFamily(PREFIX + name, text, value=number(stats))
        for name, text, size in _TIER:
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["tier"])
            for tier in stats.tiers:
                gauge.add_metric([tier.name], size(tier))
            yield gauge
        yield from _of_namespaces(stats)


def _of_namespaces(stats: StoreStats) -> Iterator[Metric]:
    labels = ["namespace", "label"]
    for rows, family in ((_SPACE, GaugeMetricFamily), (_SPACE_COUNTERS, CounterMetricFamily)):
        for name, text, read in rows:
            metric = family(PREFIX + name, text, labels=labels)
            for space in stats.namespaces:
                metric.add_metric([space.fingerprint.hex(), space.label], read(space))
            yield metric


def make_registry(stats: Callable[[], StoreStats]) -> CollectorRegistry:
    """A registry of its own, with one StoreCollector; no process-wide default is touched."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(stats))
    return registry
