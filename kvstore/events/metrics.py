"""Prometheus metrics of KV events, of what engines report and of scores, read at each scrape."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..scores import Scores
from .feed import Feed
from .hbm import Hbm

PREFIX = "kvterrace_events_"


class EventsCollector(Collector):
    """Of one node."""

    def __init__(self, feed: Feed, hbm: Hbm, scores: Scores) -> None:
        self._feed, self._hbm, self._scores = feed, hbm, scores

    def collect(self) -> Iterator[Metric]:
        feed, counts, hbm, scores = self._feed, self._feed.counts, self._hbm, self._scores
        yield GaugeMetricFamily(PREFIX + "subscribers", "That are served now.", value=feed.subscribers)
        yield GaugeMetricFamily(PREFIX + "replay_bytes", "Kept for who falls behind.", value=feed.ring_bytes)
        events = CounterMetricFamily(PREFIX + "published", "Events, by kind, once for all.", labels=["kind"])
        for kind, count in counts.events.items():
            events.add_metric([kind], count)
        yield events
        yield CounterMetricFamily(PREFIX + "batches", "That were numbered.", value=counts.batches)
        yield CounterMetricFamily(PREFIX + "sent_batches", "To all subscribers together.", value=counts.sent_batches)
        snapshots = CounterMetricFamily(
            PREFIX + "snapshots",
            "That subscribers were given: new, after another epoch, after a gap, or asked for.",
            labels=["why"],
        )
        for why, count in counts.snapshots.items():
            snapshots.add_metric([why], count)
        yield snapshots
        yield CounterMetricFamily(PREFIX + "refused_subscribers", "Above the limit.", value=counts.refused)
        yield GaugeMetricFamily("kvterrace_hbm_blocks", "In engines' memory, as they report.", value=hbm.blocks)
        yield CounterMetricFamily(
            "kvterrace_hbm_ignored_blocks", "Reported beyond the bounds, or below unknown ones.", value=hbm.dropped
        )
        yield CounterMetricFamily("kvterrace_scores", "Scores that were asked for.", value=scores.asked)
        yield CounterMetricFamily(
            "kvterrace_score_unanswered", "Nodes that did not answer one.", value=scores.unanswered
        )
