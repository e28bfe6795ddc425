"""Prometheus metrics of what requests got, as their engines say, and of what the traffic says, read at each scrape.

What is estimated is a gauge, since it falls, too: tokens of sliding windows, and shares of tokens that caches of other
sizes would have hit.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .insight import Insight
from .spaces import point_sizes
from .types import Finding, SpaceInsight, Window

PREFIX = "kvterrace_store_"
INSIGHT_PREFIX = "kvterrace_insight_"
STORE_WIDE = "*"
"""In place of a namespace: all together."""

_WINDOWS: tuple[tuple[str, str, Callable[[Window], int]], ...] = (
    ("window_tokens", "Tokens in full blocks asked for in the last seconds.", lambda window: window.tokens),
    (
        "window_repeated_tokens",
        "Of them asked for before in the window, as estimated: a cache without limit would have hit them.",
        lambda window: window.repeated_tokens,
    ),
    ("window_hit_tokens", "Of them found, in the engine or in any tier.", lambda window: window.hit_tokens),
)


class InsightCollector(Collector):
    """Of one store."""

    def __init__(self, insight: Insight) -> None:
        self._insight = insight

    def collect(self) -> Iterator[Metric]:
        yield from _of_receipts(self._insight)
        yield from _of_spaces(self._insight.spaces())
        yield from _of_findings(self._insight.findings())
        for name, text, value in (
            ("looked_prompts", "Prompts that the insight figures are made from.", self._insight.looked),
            ("skipped_prompts", "Prompts left out of them, since there was no time.", self._insight.skipped),
            ("work_seconds", "Of the store's loop that making them took.", self._insight.worked_s),
        ):
            yield CounterMetricFamily(INSIGHT_PREFIX + name, text, value=value)


def _of_receipts(insight: Insight) -> Iterator[Metric]:
    served = insight.served_totals
    yield CounterMetricFamily(PREFIX + "receipts", "Requests that engines told of.", value=served.requests)
    yield _labelled(
        "served_tokens",
        "Prompt tokens of these requests, by where their KV was found; they sum to the prompts.",
        "tier",
        served.tokens,
    )
    yield _labelled(
        "served_misses",
        "These requests, by why their first computed full block was not found.",
        "reason",
        served.misses,
    )
    yield CounterMetricFamily(
        PREFIX + "served_saved_seconds",
        "Of prefill that loaded blocks spared these requests, less the wait; of those that won.",
        value=served.saved_s,
    )
    yield CounterMetricFamily(
        PREFIX + "served_lost_seconds", "Of waiting beyond what was spared; of those that lost.", value=served.lost_s
    )
    ttft = HistogramMetricFamily(
        PREFIX + "served_ttft_seconds",
        "Arrival to first token of these requests; hit: at least half of the prompt was reused.",
        labels=["reuse"],
    )
    for reuse, spread in served.ttft_s.items():
        ttft.add_metric([reuse], list(spread.buckets()), spread.sum)
    yield ttft


def _of_spaces(spaces: list[SpaceInsight]) -> Iterator[Metric]:
    labels = ["namespace", "label"]
    for name, text, value in _WINDOWS:
        gauge = GaugeMetricFamily(INSIGHT_PREFIX + name, text, labels=[*labels, "window"])
        for space in spaces:
            for window in space.windows:
                gauge.add_metric([*_named(space), f"{window.window_s:.0f}"], value(window))
        yield gauge
    shares = GaugeMetricFamily(
        INSIGHT_PREFIX + "what_if_hit_share",
        "Share of the tokens asked for that least-recently-used would hit if that tier had so many times its size.",
        labels=[*labels, "tier", "times"],
    )
    sizes = GaugeMetricFamily(
        INSIGHT_PREFIX + "what_if_bytes",
        "DRAM and NVMe together, where that tier has so many times its size.",
        labels=["tier", "times"],
    )
    references = GaugeMetricFamily(
        INSIGHT_PREFIX + "what_if_blocks",
        "Blocks asked for that the shares are made from; older ones count less.",
        labels=labels,
    )
    for space in spaces:
        at = {point.capacity_bytes: point.hit_share for point in space.curve}
        for (tier, times), size in point_sizes(space.dram_bytes, space.nvme_bytes).items():
            if size in at:
                shares.add_metric([*_named(space), tier, f"{times:g}"], at[size])
        references.add_metric(_named(space), space.references)
    for (tier, times), size in point_sizes(spaces[0].dram_bytes, spaces[0].nvme_bytes).items():
        sizes.add_metric([tier, f"{times:g}"], size)
    yield from (shares, sizes, references)


def _of_findings(findings: list[Finding]) -> Iterator[Metric]:
    kinds = sorted({each.kind for each in findings})
    count = GaugeMetricFamily(
        INSIGHT_PREFIX + "findings", "Places where prompts break off early for no good reason.", labels=["kind"]
    )
    lost = GaugeMetricFamily(
        INSIGHT_PREFIX + "lost_tokens_per_day", "Computed again because of these places.", labels=["kind"]
    )
    for kind in kinds:
        alike = [each for each in findings if each.kind == kind]
        count.add_metric([kind], len(alike))
        lost.add_metric([kind], sum(each.lost_tokens_per_day for each in alike))
    yield from (count, lost)


def _named(space: SpaceInsight) -> list[str]:
    return [space.fingerprint.hex() or STORE_WIDE, space.label]


def _labelled(name: str, text: str, label: str, counts: Mapping[str, int]) -> CounterMetricFamily:
    counter = CounterMetricFamily(PREFIX + name, text, labels=[label])
    for value, count in counts.items():
        counter.add_metric([value], count)
    return counter
