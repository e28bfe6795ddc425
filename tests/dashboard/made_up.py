"""A process of its own that serves the dashboard of a node that is made up: two tenants, a cluster of three of which
one is lost, a curve and a finding. Says where on its standard output; ends with its standard input."""

import asyncio
import sys
from dataclasses import replace
from typing import Any

from fastapi import FastAPI
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.dashboard.offer import Offer
from kvterrace.kvstore.dashboard.snapshot import Reader, Settings, Slow, Snapshot
from kvterrace.kvstore.events.sight import Sees
from kvterrace.kvstore.http import HttpServer
from kvterrace.kvstore.insight.types import CurvePoint, Finding, SpaceInsight, Window
from kvterrace.kvstore.security.audit import AuditLog
from kvterrace.kvstore.security.guard import Guard
from kvterrace.kvstore.security.setup import Security
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tenants.tenants import Limits, TenantStats
from kvterrace.proto import kv_pb2 as pb

GIB = 1 << 30
TENANTS = (
    TenantStats("acme", Limits(dram_quota=8 * GIB, nvme_floor=GIB), {"dram": 2 * GIB, "nvme": 3 * GIB}, 900, 100, 2),
    TenantStats("<b>rival</b>", Limits(), {"dram": GIB}, 0, 0, 0),
)
MEMBERS = (("node-b", "ok", False), ("node-a", "ok", False), ("node-c", "lost", False), ("node-d", "ok", True))
CLUSTER = pb.ClusterStatus(
    name="west",
    node="node-a",
    connected=True,
    joined=True,
    valkey="valkey.example:6379",
    round_trip_s=0.0005,
    replica_bytes=GIB,
    members=[
        pb.MemberStatus(node=node, state=state, draining=draining, grpc=f"{node}:7070", package_version="1.0")
        for node, state, draining in MEMBERS
    ],
)
SHARES = ((0.9, 0.2), (2, 0.4), (4, 0.55), (8, 0.62), (20, 0.62))  # GiB: neither end is a power of two
CURVE = tuple(CurvePoint(int(gib * GIB), share) for gib, share in SHARES)
SPACE = SpaceInsight(b"", "", "", (Window(3600.0, 1000, 900, 700),), CURVE, 0.5, 1000, 2 * GIB, 16 * GIB)
FOUND = Finding(
    b"f" * 32, "llama", "", b"k" * 32, 40, "timestamp", 12, 345_678.0, b"", b"", "Now: 10:01. Be", "Now: 10:02. Be"
)
MODELS = [
    replace(
        SPACE,
        fingerprint=name.encode() * 4,
        label=name,
        curve=tuple(CurvePoint(int(g * GIB), s * by) for g, s in SHARES),
    )
    for name, by in (("llama-70b", 1.2), ("qwen-32b", 0.5))
]
SLOW = Slow(spaces=[SPACE, *MODELS], findings=[FOUND])


class MadeUp(Reader):
    """What it reads of a store without anybody in it, and the rest."""

    def read(self, sees: Sees, slow: Slow) -> Snapshot:
        seen = super().read(sees, slow)
        return replace(seen, stats=replace(seen.stats, tenants=list(TENANTS)), cluster=CLUSTER, slow=SLOW)


async def main() -> None:
    """Until nobody wants it any more."""
    store = Store(Arena.anonymous(4 << 20))
    servicer = Servicer(store, "none", b"b" * 16)
    reader = MadeUp(store, servicer, Settings("node-a"), lambda: "ready")
    offer: Any = Offer(reader, servicer, AuditLog(), node="node-a", wanted=True)
    app = FastAPI()
    app.mount("/", offer)
    server = HttpServer(app, "127.0.0.1:0", Security(Guard(), AuditLog()))
    await server.start()
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await offer.close()
    await server.stop()
    store.close()


if __name__ == "__main__":
    asyncio.run(main())
