"""Prometheus metrics of the remote tier, read at each scrape like the store's."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .remote import Remote

_PREFIX = "kvterrace_remote_"


class RemoteCollector(Collector):
    """Of a store that has one."""

    def __init__(self, remote: Remote) -> None:
        self._tier = remote.tier
        self._finder = remote.finder

    def collect(self) -> Iterator[Metric]:
        counts = self._tier.counts
        failures = CounterMetricFamily(
            _PREFIX + "failures", "Operations that did not work.", labels=["operation", "reason"]
        )
        for (operation, reason), count in counts.failures.items():
            failures.add_metric([operation, reason], count)
        yield failures
        for name, label, text, numbers in (
            ("bad_objects", "kind", "Objects found torn, flipped or foreign, and removed.", counts.bad_objects),
            ("lookups", "outcome", "Questions how much of a prompt is there.", counts.lookups),
            ("dropped_upload_blocks", "reason", "Blocks that were not written.", counts.dropped_uploads),
        ):
            counter = CounterMetricFamily(_PREFIX + name, text, labels=[label])
            for value, count in numbers.items():
                counter.add_metric([value], count)
            yield counter
        for name, text, number in (
            ("uploaded_blocks", "Blocks written.", counts.uploaded_blocks),
            ("present_blocks", "Blocks that were there already.", counts.present_blocks),
            ("evicted_blocks", "Blocks that this node removed to make room.", self._tier.evicted),
            ("lookup_seconds", "That these questions took.", counts.lookup_s),
        ):
            yield CounterMetricFamily(_PREFIX + name, text, value=number)
        up = GaugeMetricFamily(_PREFIX + "up", "1 while the operation is not paused.", labels=["operation"])
        for operation, state in self._tier.states().items():
            up.add_metric([operation], not state)
        yield up
        yield GaugeMetricFamily(_PREFIX + "ask_seconds", "What a question takes, lately.", value=self._finder.ask_s)
