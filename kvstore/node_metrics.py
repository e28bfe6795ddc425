"""Prometheus metrics of a node of a cluster, read at each scrape like the store's."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .cluster.stats import ClusterCounters, ClusterStatus
from .node import Node
from .peer.bulk_server import BulkServer

_GAUGES: tuple[tuple[str, str, Callable[[ClusterStatus], float]], ...] = (
    ("connected", "1 while Valkey answers.", lambda status: status.connected),
    ("joined", "1 while this node is a member there.", lambda status: status.joined),
    ("members", "Live nodes, this one included, as last known.", lambda status: status.members),
    ("marks", "Places of prefixes by which this node can be found.", lambda status: status.marks),
    ("backlog_marks", "Changes that are not announced yet.", lambda status: status.backlog),
    ("round_trip_seconds", "Of the last renewal with Valkey.", lambda status: status.round_trip_s),
)
_COUNTERS: tuple[tuple[str, str, Callable[[ClusterCounters], int]], ...] = (
    ("announced_marks", "Marks that Valkey took, repetitions included.", lambda counters: counters.announced),
    ("withdrawn_marks", "Marks that were taken back.", lambda counters: counters.withdrawn),
    ("announce_failures", "Batches that Valkey did not take.", lambda counters: counters.announce_failures),
    ("lost", "Times that Valkey went away.", lambda counters: counters.lost),
    ("claims", "Lookups that made a prompt this node's to compute.", lambda counters: counters.claimed),
    ("claims_found", "Lookups that found another node computing.", lambda counters: counters.claims_found),
)
_LABELLED: tuple[tuple[str, str, str, Callable[[ClusterCounters], Mapping[str, int]]], ...] = (
    ("lookups", "outcome", "Questions who has a prefix, by what came of them.", lambda c: c.lookups),
    ("full_announces", "why", "Times that everything was announced again.", lambda c: c.full_announces),
    ("ignored_values", "where", "Values from Valkey that were nonsense or of nobody there.", lambda c: c.ignored),
)
_BULK: tuple[tuple[str, str, Callable[[BulkServer], int]], ...] = (
    ("bulk_sent_bytes", "Sent to others by the bulk channel.", lambda bulk: bulk.sent_bytes),
    ("bulk_transfers", "Transfers that ended well.", lambda bulk: bulk.transfers),
    ("bulk_broken_transfers", "Transfers that did not.", lambda bulk: bulk.broken),
    ("bulk_refused_tickets", "Tickets that were not good.", lambda bulk: bulk.refused),
    ("bulk_turned_away", "Connections above the limit.", lambda bulk: bulk.turned_away),
)


class NodeCollector(Collector):
    """Asks `node` at each scrape; nothing while that is None."""

    def __init__(self, node: Callable[[], Node | None]) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        node = self._node()
        if node is None:
            return
        yield from _of_cluster(node)
        yield from _of_peers(node)
        yield from _of_handover(node)


def _of_cluster(node: Node) -> Iterator[Metric]:
    prefix, status, counters = "kvterrace_cluster_", node.cluster.status(), node.cluster.counters
    for name, text, value in _GAUGES:
        yield GaugeMetricFamily(prefix + name, text, value=value(status))
    for name, text, number in _COUNTERS:
        yield CounterMetricFamily(prefix + name, text, value=number(counters))
    for name, label, text, numbers in _LABELLED:
        yield _counter(prefix + name, text, [label], {(key,): count for key, count in numbers(counters).items()})


def _of_peers(node: Node) -> Iterator[Metric]:
    prefix, read, lent = "kvterrace_peer_", node.peers.counts, node.fetching.counts
    way = ["way"]
    yield _counter(prefix + "read_bytes", "Of blocks fetched from others.", way, _one(read.read_bytes))
    yield _counter(prefix + "read_seconds", "That these transfers took.", way, _one(read.read_s))
    yield _counter(prefix + "fetches", "Runs of blocks asked for.", ["way", "outcome"], read.fetches)
    yield CounterMetricFamily(
        prefix + "corrupt_blocks", "Fetched, and not what their checksums say.", value=read.corrupt_blocks
    )
    yield _counter(prefix + "lent_blocks", "Blocks offered to others.", way, _one(lent.lent_blocks))
    yield _counter(prefix + "lent_bytes", "Of blocks offered to others.", way, _one(lent.lent_bytes))
    yield _counter(
        prefix + "refused_fetches",
        "Requests of others that made no sense, or came while too many were served.",
        ["field"],
        _one(lent.refused),
    )
    up = GaugeMetricFamily(prefix + "up", "1 while that node is asked: its breaker is closed.", labels=["node"])
    for name, state in node.peers.states().items():
        up.add_metric([name], not state)
    yield up
    for name, text, number in _BULK:
        yield CounterMetricFamily(prefix + name, text, value=number(node.bulk))
    yield GaugeMetricFamily(prefix + "in_flight_bytes", "Being fetched.", value=node.peers.in_flight_bytes)


def _of_handover(node: Node) -> Iterator[Metric]:
    prefix, warmth, counts = "kvterrace_cluster_", node.stock.warmth(), node.stock.counts
    yield GaugeMetricFamily(prefix + "hot_bytes", "In DRAM, used within five minutes.", value=warmth.hot_bytes)
    yield GaugeMetricFamily(
        prefix + "last_copy_bytes", "In DRAM, and on no other node as far as known.", value=warmth.last_bytes
    )
    yield GaugeMetricFamily(
        prefix + "hot_last_copy_bytes", "Both: what is lost when this node goes undrained.", value=warmth.hot_last_bytes
    )
    yield GaugeMetricFamily(prefix + "replica_bytes", "In DRAM, and elsewhere, too.", value=warmth.replica_bytes)
    yield CounterMetricFamily(
        prefix + "taken_over_blocks", "From nodes that left, or when this one started.", value=counts.taken_blocks
    )
    yield CounterMetricFamily(prefix + "taken_over_bytes", "Of these blocks.", value=counts.taken_bytes)
    yield _counter(prefix + "refused_paths", "That were not taken over whole.", ["reason"], _one(counts.refused))


def _one(numbers: Mapping[str, float]) -> dict[tuple[str, ...], float]:
    return {(key,): number for key, number in numbers.items()}


def _counter(name: str, text: str, labels: list[str], numbers: Mapping[Any, float]) -> CounterMetricFamily:
    counter = CounterMetricFamily(name, text, labels=labels)
    for values, number in numbers.items():
        counter.add_metric(list(values), number)
    return counter
