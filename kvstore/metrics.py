"""Prometheus metrics of a store, read from `Store.stats()` at each scrape: nothing is counted twice, nothing is stale.

Counters in tokens, blocks and bytes, never ratios. Used on the store's own loop.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .inflight_metrics import inflight_metrics
from .insight import Insight
from .insight.metrics import InsightCollector
from .spread import Spread
from .stats import NamespaceStats, StoreStats, TierStats
from .tenants.metrics import TenantCollector
from .tiers.codec import CodecStats
from .tiers.nvme.types import DeviceStats

PREFIX = "kvterrace_store_"
_Family: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]

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
    ("promoted_blocks", "tier", "Blocks brought up to DRAM from that tier.", lambda s: s.counters.promoted_blocks),
    ("demoted_blocks", "tier", "Blocks written to that tier.", lambda stats: stats.counters.demoted_blocks),
    (
        "dropped_demotion_blocks",
        "reason",
        "Blocks that were not written to the lower tier.",
        lambda stats: stats.counters.dropped_demotions,
    ),
    ("failed_load_blocks", "reason", "Blocks a lower tier could not give.", lambda s: s.counters.failed_loads),
    ("tier_evicted_blocks", "tier", "Blocks that left that tier.", lambda stats: stats.counters.tier_evictions),
    (
        "prefetched_blocks",
        "outcome",
        "Blocks brought up ahead of a request, when they were used or left unused.",
        lambda stats: stats.counters.prefetched_blocks,
    ),
    ("tier_read_bytes", "tier", "Payload read from that tier.", lambda stats: stats.counters.read_bytes),
    ("tier_written_bytes", "tier", "Payload written to that tier.", lambda stats: stats.counters.written_bytes),
    ("tier_came_bytes", "tier", "Of blocks that became available in that tier.", lambda s: s.counters.came_bytes),
    ("tier_left_bytes", "tier", "Of blocks that left that tier.", lambda stats: stats.counters.left_bytes),
)
_PLAIN: tuple[tuple[str, str, Callable[[StoreStats], float]], ...] = (
    ("committed_blocks", "Blocks made visible.", lambda stats: stats.counters.committed_blocks),
    ("duplicate_blocks", "Blocks committed when another had been first.", lambda s: s.counters.duplicate_blocks),
    ("checksum_failures", "Blocks that a reader found corrupt.", lambda stats: stats.counters.checksum_failures),
    ("acquires", "Requests for a prefix.", lambda stats: stats.counters.acquires),
    ("sessions_opened", "Sessions ever opened.", lambda stats: stats.counters.sessions_opened),
    (
        "saved_seconds",
        "Seconds of prefill that leased blocks saved, less what loading them took, by the cost model.",
        lambda stats: stats.counters.saved_s,
    ),
)
_DEVICE: tuple[tuple[str, str, Callable[[DeviceStats], float]], ...] = (
    ("device_up", "1 while the path is in use.", lambda device: device.state == "ok"),
    ("device_capacity_bytes", "Cap on the path.", lambda device: device.capacity_bytes),
    ("device_used_bytes", "Bytes on the disk.", lambda device: device.used_bytes),
    ("device_live_bytes", "Bytes of records that can be got.", lambda device: device.live_bytes),
    ("device_segments", "Segment files.", lambda device: device.segments),
    ("device_foreign_segments", "Files of an unknown version, left alone.", lambda device: device.foreign_segments),
)
_DEVICE_COUNTERS: tuple[tuple[str, str, Callable[[DeviceStats], float]], ...] = (
    ("device_written_bytes", "Written to the device, for whatever reason.", lambda device: device.written_bytes),
    (
        "device_accepted_bytes",
        "Written because a block was put; written over accepted is the write amplification.",
        lambda device: device.accepted_bytes,
    ),
    ("device_read_bytes", "Read from the device for blocks.", lambda device: device.read_bytes),
    ("device_errors", "Device calls that failed or took too long.", lambda device: device.errors),
    ("device_corrupt_blocks", "Records found damaged, and dropped.", lambda device: device.corrupt_blocks),
    ("device_encrypted_blocks", "Records written encrypted.", lambda device: device.encrypted_blocks),
    ("device_open_failures", "Corrupt records that their key did not open.", lambda device: device.open_failures),
    (
        "device_key_missing_blocks",
        "Records dropped at start, since their key is not there any more.",
        lambda device: device.key_missing_blocks,
    ),
    (
        "device_clear_dropped_blocks",
        "Records dropped, since they are in clear and should not be.",
        lambda device: device.clear_dropped_blocks,
    ),
)
_HISTOGRAMS: tuple[tuple[str, tuple[str, str], str, Callable[[StoreStats], Mapping[tuple[str, str], Spread]]], ...] = (
    (
        "tier_transfer_seconds",
        ("tier", "direction"),
        "Of a batch of blocks read from or written to that tier, from its beginning to its end.",
        lambda stats: stats.latencies,
    ),
    (
        "residence_seconds",
        ("tier", "use"),
        "How long blocks that left had been in that tier; by whether a request had used them there.",
        lambda stats: stats.counters.residence,
    ),
)
_BACKLOG: tuple[tuple[str, str, Callable[[StoreStats], float]], ...] = (
    ("backlog_slots", "Slots that engines reserved and have not committed.", lambda stats: stats.backlog_slots),
    ("backlog_limit_slots", "How many may be; beyond, saves are dropped.", lambda stats: stats.backlog_limit_slots),
)
_CODEC: tuple[tuple[str, str, _Family, Callable[[CodecStats], float]], ...] = (
    ("codec_enabled", "1 while blocks are compressed.", GaugeMetricFamily, lambda codec: codec.enabled),
    ("codec_raw_bytes", "Of blocks that were compressed.", CounterMetricFamily, lambda codec: codec.raw_bytes),
    ("codec_stored_bytes", "What they take compressed.", CounterMetricFamily, lambda codec: codec.stored_bytes),
)
_TIER: tuple[tuple[str, str, Callable[[TierStats], float]], ...] = (
    ("tier_capacity_bytes", "Size of the tier.", lambda tier: tier.capacity_bytes),
    ("tier_used_bytes", "Slots that hold or await a block.", lambda tier: tier.used_bytes),
    ("tier_leased_bytes", "Used slots that may not be evicted now.", lambda tier: tier.leased_bytes),
    ("tier_reserved_bytes", "Slots being written, or bytes waiting to be.", lambda tier: tier.reserved_bytes),
    ("tier_blocks", "Blocks that can be got.", lambda tier: tier.blocks),
    ("tier_pinned_blocks", "Blocks pinned by request or operator.", lambda tier: tier.pinned_blocks),
    ("tier_read_latency_seconds", "Of a read, as the cost model has it.", lambda tier: tier.latency_s),
    ("tier_read_bytes_per_second", "As the cost model has it.", lambda tier: tier.bytes_per_s),
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
        for name, text, number in _BACKLOG:
            yield GaugeMetricFamily(PREFIX + name, text, value=number(stats))
        for name, labels, text, spreads in _HISTOGRAMS:
            histogram = HistogramMetricFamily(PREFIX + name, text, labels=labels)
            for values, spread in spreads(stats).items():
                histogram.add_metric(values, list(spread.buckets()), spread.sum)
            yield histogram
        yield from _of_devices(stats)
        yield from _of_namespaces(stats)
        yield from inflight_metrics(stats.counters)


def _of_devices(stats: StoreStats) -> Iterator[Metric]:
    devices = [device for tier in stats.tiers for device in tier.devices]
    for rows, family in ((_DEVICE, GaugeMetricFamily), (_DEVICE_COUNTERS, CounterMetricFamily)):
        for name, text, read in rows:
            metric = family(PREFIX + name, text, labels=["path"])
            for device in devices:
                metric.add_metric([device.path], read(device))
            yield metric
    for name, text, family, value in _CODEC:
        metric = family(PREFIX + name, text, labels=["tier", "codec"])
        for tier in stats.tiers:
            if tier.codec is not None:
                metric.add_metric([tier.name, tier.codec.name], value(tier.codec))
        yield metric
    left = GaugeMetricFamily(PREFIX + "device_write_budget_left_bytes", "Of today's write budget.", labels=["path"])
    for device in devices:
        if device.budget_left_bytes is not None:
            left.add_metric([device.path], device.budget_left_bytes)
    yield left


def _of_namespaces(stats: StoreStats) -> Iterator[Metric]:
    labels = ["namespace", "label"]
    for rows, family in ((_SPACE, GaugeMetricFamily), (_SPACE_COUNTERS, CounterMetricFamily)):
        for name, text, read in rows:
            metric = family(PREFIX + name, text, labels=labels)
            for space in stats.namespaces:
                metric.add_metric([space.fingerprint.hex(), space.label], read(space))
            yield metric


def make_registry(stats: Callable[[], StoreStats], insight: Insight | None = None) -> CollectorRegistry:
    """A registry of its own, of one store; no process-wide default is touched."""
    registry = CollectorRegistry()
    registry.register(StoreCollector(stats))
    registry.register(TenantCollector(lambda: stats().tenants))
    if insight is not None:
        registry.register(InsightCollector(insight))
    return registry
