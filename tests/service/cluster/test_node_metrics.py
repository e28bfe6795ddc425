"""What a node of a cluster tells of itself follows what happens to it."""

import pytest
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.node import Node
from kvterrace.kvstore.node_metrics import NodeCollector
from kvterrace.kvstore.peer.bulk_server import BulkServer
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.peer.peers import Peers
from kvterrace.kvstore.peer.tickets import Tickets
from kvterrace.kvstore.store import Store
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.service

LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=16, head_dim=8, dtype="float32")
SAID = {"hot_bytes", "last_copy_bytes", "hot_last_copy_bytes"}


def told(node: Node) -> dict[str, float]:
    families = NodeCollector(lambda: node).collect()
    return {each.name.removeprefix("kvterrace_cluster_"): each.samples[0].value for each in families if each.samples}


async def test_membership_and_warmth_are_told(town):
    store, tickets = Store(Arena.anonymous(64 * 4096), slab_bytes=4096), Tickets()
    cluster = town.make("a")
    node = Node(
        cluster, Peers("a", None), Fetching(store, tickets), BulkServer("127.0.0.1", 0, tickets), store.stock, None
    )
    before = told(node)
    assert (before["connected"], before["joined"], before["marks"]) == (0, 0, 0)
    await cluster.start()
    unwatch = store.watch(cluster.watcher)
    await town.meet(cluster, await town.node("b"))
    session = store.open_session(Namespace(b"w" * 32, LAYOUT), client="me")
    given = session.reserve(pack_tokens(range(64)), start=0, count=4)
    assert session.commit(given.lease, [0] * 4)
    after = told(node)
    assert (after["connected"], after["joined"], after["members"]) == (1, 1, 2)
    assert after["round_trip_seconds"] > 0
    assert after["marks"] > 0
    assert {name: after[name] for name in SAID} == dict.fromkeys(SAID, 4 * 4096)
    unwatch()
    store.close()
