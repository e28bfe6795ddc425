"""Writes docs/metrics.md: every metric of a sidecar and of the bundled engine, as the program has it.

    python deploy/metrics_doc.py            # writes the file
    python deploy/metrics_doc.py --check    # exits with 1 when it is not what the program has

Needs the engine extra. Serves nothing: the collectors are made around empty parts, and say what they would tell.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvterrace.connector.base import ConnectorStatus
from kvterrace.engine.server.backend import Backend
from kvterrace.engine.server.metrics import EngineCollector, HttpMetrics
from kvterrace.engine.stats import EngineStats
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.cluster.cluster import Cluster
from kvterrace.kvstore.cluster.membership import Member
from kvterrace.kvstore.config import ServeConfig
from kvterrace.kvstore.events.metrics import EventsCollector
from kvterrace.kvstore.metrics import make_registry
from kvterrace.kvstore.node import Node
from kvterrace.kvstore.node_metrics import NodeCollector
from kvterrace.kvstore.peer.bulk_server import BulkServer
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.peer.peers import Peers
from kvterrace.kvstore.peer.tickets import Tickets
from kvterrace.kvstore.remote.metrics import RemoteCollector
from kvterrace.kvstore.remote.setup import open_remote
from kvterrace.kvstore.security.metrics import SecurityCollector
from kvterrace.kvstore.security.setup import secured
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tenants.tenants import Tenants
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

TARGET = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"

HEAD = """# Metrics

`/metrics` of a sidecar (`kvterrace serve --http HOST:PORT`) and of the bundled engine, in Prometheus' text format.
Names begin `kvterrace_`. What is counted is counted in tokens, blocks, bytes and seconds, never as a ratio: form rates
and shares of your own. Gauges of estimates (`kvterrace_insight_*`) are the exception, since an estimate has no counter.

- **What requests got**: `kvterrace_store_served_tokens_total` by tier, with `hbm` and `computed`, as engines tell once
  a prompt is served; its tiers sum to the prompt tokens. `kvterrace_prompt_tokens_total` is the same as one engine
  counts it, of prompts that ran.
- **What the store was asked**: `kvterrace_store_hit_tokens_total` by tier and `kvterrace_store_miss_tokens_total` by
  reason, counted at each acquire: what the engine had in its own memory is in neither.
- **What more room would bring**: `kvterrace_insight_window_repeated_tokens` over `kvterrace_insight_window_tokens` is
  the hit share of a cache without limit, `kvterrace_insight_what_if_hit_share` that of one of another size. Namespace
  `*` is the whole store. Both are estimates: the first is off by about 1.2 % of the different blocks, the second by
  about one point.
- **Which evictions hurt**: `kvterrace_store_evicted_reused_blocks_total` over `kvterrace_store_evicted_blocks_total`,
  and `kvterrace_store_residence_seconds` by tier and use: blocks that were used and left soon want a larger tier.

Histograms have `_bucket`, `_sum` and `_count`. This page is made by `python deploy/metrics_doc.py`; a test keeps it
true.
"""
SECTIONS = {
    "A sidecar": "Of every sidecar.",
    "A sidecar with tenants": "With `--tenants`.",
    "A sidecar with a store of last resort": "With `--remote`.",
    "A node of a cluster": "With `--cluster`.",
    "The bundled engine": "Of `kvterrace engine`.",
}


def main(check: bool) -> int:
    text = page()
    if not check:
        TARGET.write_text(text)
        print(f"wrote {TARGET}")
        return 0
    if TARGET.read_text() == text:
        return 0
    print(f"{TARGET} is not what the program has: run python deploy/metrics_doc.py")
    return 1


def page() -> str:
    """The whole file."""
    with contextlib.ExitStack() as owned:
        sections = dict(zip(SECTIONS, _collectors(owned), strict=True))
        parts = [HEAD]
        for title, collectors in sections.items():
            rows = sorted(row for collector in collectors for row in _rows(collector))
            parts.append(f"## {title}\n\n{SECTIONS[title]}\n\n| metric | type | labels | |\n|---|---|---|---|")
            parts.append("\n".join(rows) + "\n")
        return "\n".join(parts)


def _rows(collector: Collector) -> Iterator[str]:
    for family in collector.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in _labels(collector, family))
        yield f"| `{name}` | {family.type} | {labels} | {family.documentation} |"


def _labels(collector: Any, family: Any) -> list[str]:
    return list(getattr(family, "_labelnames", None) or getattr(collector, "_labelnames", ()))


def _collectors(owned: contextlib.ExitStack) -> list[list[Collector]]:
    """In the order of SECTIONS."""
    store = Store(Arena.anonymous(1 << 20))
    shared = Store(Arena.anonymous(1 << 20), tenants=Tenants({}, bytes(32), dram_bytes=1 << 20))
    owned.callback(store.close)
    owned.callback(shared.close)
    servicer = Servicer(store, "", b"", node="doc")
    security = owned.enter_context(secured(ServeConfig()))
    events = EventsCollector(servicer.streams.feed, store.holdings.hbm, servicer.scores)
    folder = owned.enter_context(tempfile.TemporaryDirectory())
    remote = open_remote(ServeConfig(remote=f"file://{folder}"))
    assert remote is not None
    engine, http = _engine()
    tenants = [each for each in _parts(make_registry(shared.stats)) if "Tenant" in type(each).__name__]
    whole = [each for each in _parts(make_registry(store.stats, store.insight)) if "Tenant" not in type(each).__name__]
    return [
        [*whole, SecurityCollector(security), events],
        tenants,
        [RemoteCollector(remote)],
        [NodeCollector(lambda: _node(owned, store))],
        [engine, *http],
    ]


def _node(owned: contextlib.ExitStack, store: Store) -> Node:
    member = Member("doc", 1, "127.0.0.1:1", "127.0.0.1:2", 1, "")
    peers, tickets = Peers("doc", None), Tickets()
    cluster = Cluster("redis://127.0.0.1:1", "doc", member, peers.tier)
    return Node(cluster, peers, Fetching(store, tickets), BulkServer("127.0.0.1", 0, tickets), store.stock, None)


def _engine() -> tuple[Collector, list[Collector]]:
    connector = SimpleNamespace(status=lambda: ConnectorStatus("sidecar", connected=True))
    loop = SimpleNamespace(alive=True, stats=EngineStats, connector=connector)
    backend = Backend("doc", "")
    backend.ready(SimpleNamespace(), loop)  # type: ignore[arg-type]
    registry = CollectorRegistry()
    HttpMetrics(registry)
    return EngineCollector(backend), _parts(registry)


def _parts(registry: CollectorRegistry) -> list[Collector]:
    return list(registry._collector_to_names)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
