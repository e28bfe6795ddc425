"""Prometheus metrics of one engine: what the engine counted, read at scrape time, and what the HTTP side counts.

Names begin kvterrace_engine_; the one exception, kvterrace_prompt_tokens_total, is the same in every part of kvterrace.
Counters only where something is counted: rates and ratios are the scraper's to form.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..stats import LATENCY_BUCKETS_S, EngineStats, Histogram
from .backend import Backend

PREFIX = "kvterrace_engine_"

COUNTERS = {
    "requests": "Requests taken into the queue.",
    "rejected": "Requests refused because the queue was full.",
    "generated_tokens": "Tokens sampled.",
    "prefill_tokens": "Prompt tokens the model was fed, recomputed ones included.",
    "decode_tokens": "Output tokens the model was fed.",
    "preemptions": "Sequences that lost their pages to others and waited again.",
    "steps": "Steps of the model.",
    "step_errors": "Steps that failed.",
    "saved_blocks": "Blocks that became visible in the store.",
    "dropped_saves": "Blocks not saved: not taken by the store, or too many on their way.",
    "late_transfers": "Fetches and loads that were given up as too late.",
    "stray_events": "Connector events that nobody waited for.",
}
SECONDS = {
    "prefill_s": ("prefill_seconds", "Time in steps that went to prompt tokens."),
    "decode_s": ("decode_seconds", "Time in steps that went to output tokens."),
    "saved_s": (
        "saved_seconds",
        "Computing that the store's blocks spared, less the wait for them; of requests that won.",
    ),
    "lost_s": ("lost_seconds", "Waits for the store beyond what its blocks spared; of requests that lost."),
}
GAUGES = {
    "queued": "Requests that have not run yet.",
    "waiting": "Sequences that wait to run, preempted ones included.",
    "running": "Sequences in the running batch.",
}
PAGES = {
    "pages_free": "free",
    "pages_cached": "cached",
    "pages_pinned": "pinned",
    "pages_held": "held",
}
HISTOGRAMS = {
    "ttft": "Submission to first token.",
    "itl": "Token to next token of one sequence.",
    "e2e": "Submission to the end of a sequence.",
    "queue_wait": "Submission to first run.",
    "cache_wait": "Part of the queue wait that was spent waiting for the store.",
}
CONNECTOR_COUNTERS = {
    "fetches": "Questions to the store.",
    "loads": "Loads begun.",
    "loaded_blocks": "Blocks loaded and verified.",
    "loaded_bytes": "Bytes loaded and verified.",
    "load_seconds": "Time from load to its end, summed over loads.",
    "saves": "Saves begun.",
    "saved_blocks": "Blocks saved.",
    "saved_bytes": "Bytes saved.",
    "corrupt_blocks": "Blocks whose checksum or generation did not hold.",
    "prefetches": "Waiting requests that the store was told of ahead of their fetch.",
}
CONNECTOR_REASONS = {
    "misses": "Fetches that found less than asked for, by the store's reason.",
    "failures": "Fetches and loads that trouble made shorter, by reason.",
    "dropped_saves": "Blocks not saved, by reason.",
}
CONNECTOR_GAUGES = {
    "fetches_in_flight": "Questions not answered yet.",
    "loads_in_flight": "Loads not ended yet.",
    "save_bytes_in_flight": "Bytes of saves not ended yet.",
    "prefetches_in_flight": "Prefetches whose request neither fetched nor left yet.",
}


class HttpMetrics:
    """What only the HTTP side knows."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.responses = Counter(
            PREFIX + "http_responses", "Responses by route and status.", ["route", "status"], registry=registry
        )
        self.disconnects = Counter(
            PREFIX + "http_disconnects", "Clients that left before their answer was complete.", registry=registry
        )


class EngineCollector(Collector):
    """Everything the engine and its connector count, as of the scrape."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(PREFIX + "ready", "1 while requests are served.", float(not self._backend.trouble))
        engine = self._backend.engine
        if engine is None:
            return
        stats = engine.stats()
        yield from _engine_counters(stats)
        yield from _engine_gauges(stats)
        for name, text in HISTOGRAMS.items():
            yield _histogram(f"{PREFIX}{name}_seconds", text, getattr(stats, name))
        status = self._backend.connector_status()
        if status is not None:
            yield from _connector(status)


def _engine_counters(stats: EngineStats) -> Iterator[Metric]:
    yield _labelled(
        "kvterrace_prompt_tokens", "Prompt tokens served, by where their KV was found.", "tier", stats.prompt_tokens
    )
    yield _labelled(PREFIX + "misses", "Requests by why a block was not found.", "reason", stats.miss_reasons)
    yield _labelled(PREFIX + "finished", "Sequences by why they ended.", "reason", stats.finished)
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(PREFIX + name, text, getattr(stats, name))
    for field, (name, text) in SECONDS.items():
        yield CounterMetricFamily(PREFIX + name, text, getattr(stats, field))


def _engine_gauges(stats: EngineStats) -> Iterator[Metric]:
    for name, text in GAUGES.items():
        yield GaugeMetricFamily(PREFIX + name, text, getattr(stats, name))
    pages = GaugeMetricFamily(PREFIX + "pages", "KV pages by state; the rest of the total is in use.", labels=["state"])
    for field, state in PAGES.items():
        pages.add_metric([state], getattr(stats, field))
    yield pages
    yield GaugeMetricFamily(PREFIX + "pages_capacity", "KV pages in all.", stats.pages)


def _connector(status: Mapping[str, object]) -> Iterable[Metric]:
    prefix = PREFIX + "connector_"
    connected = GaugeMetricFamily(prefix + "connected", "1 while the store is attached.", labels=["kind"])
    connected.add_metric([str(status["kind"])], float(bool(status["connected"])))
    yield connected
    for name, text in CONNECTOR_COUNTERS.items():
        yield CounterMetricFamily(prefix + name, text, _number(status[name]))
    for name, text in CONNECTOR_REASONS.items():
        counts = status[name]
        assert isinstance(counts, Mapping)
        yield _labelled(prefix + name, text, "reason", counts)
    for name, text in CONNECTOR_GAUGES.items():
        yield GaugeMetricFamily(prefix + name, text, _number(status[name]))


def _labelled(name: str, text: str, label: str, counts: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    bounds = [*map(str, LATENCY_BUCKETS_S), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.sum_s)


def _number(value: object) -> float:
    assert isinstance(value, (int, float))
    return float(value)
