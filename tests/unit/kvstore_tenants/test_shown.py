"""What operators say about tenants, and what they are shown."""

import asyncio

import pytest
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.commands.quota import quota_lines, quota_request
from kvterrace.kvstore.metrics import make_registry
from kvterrace.kvstore.service.keeping import BadRequest, clear
from kvterrace.kvstore.service.report import status_reply
from kvterrace.kvstore.service.tenants import set_quota
from kvterrace.kvstore.status_view import status_json, status_tables
from kvterrace.kvstore.store import Store
from kvterrace.proto import kv_pb2 as pb
from prometheus_client import generate_latest
from rich.console import Console

pytestmark = pytest.mark.unit

PAGE = 4096


def test_a_quota_on_the_command_line():
    said = {"dram_quota": "2MiB", "dram_floor": None, "nvme_quota": "none", "nvme_floor": "0"}
    request = quota_request("a", **said)
    assert request == pb.QuotaRequest(tenant="a", dram_quota=2 << 20, set=["dram_quota", "nvme_quota", "nvme_floor"])
    with pytest.raises(ValueError, match="--dram-floor: 'x' is not a size"):
        quota_request("a", dram_floor="x")
    with pytest.raises(ValueError, match="--nvme: 'x' is not a size"):
        quota_request("a", nvme_quota="x")
    with pytest.raises(ValueError, match="say what to set"):
        quota_request("a", dram_floor=None)


def test_a_quota_is_set_and_taken_away(bench):
    b = bench(16, {"a": (None, 2)})
    set_to = pb.QuotaRequest(tenant="a", dram_quota=4 * PAGE, set=["dram_quota"])
    now = set_quota(b.store, set_to).tenant
    assert (now.dram_quota, now.dram_floor, now.HasField("nvme_quota")) == (4 * PAGE, 2 * PAGE, False)
    assert quota_lines(now)[0] == "a dram: 0 B used, quota 16.0 KiB, floor 8.0 KiB"
    assert b.save(b.open("a"), b.prompt(1, 6)) == 4
    none = set_quota(b.store, pb.QuotaRequest(tenant="a", set=["dram_quota", "dram_floor"])).tenant
    assert (none.HasField("dram_quota"), none.dram_floor) == (False, 0)
    assert quota_lines(none)[0] == "a dram: 16.0 KiB used, quota no limit, floor 0 B"


def test_a_store_without_tenants_says_so():
    store = Store(Arena.anonymous(4 * PAGE))
    with pytest.raises(BadRequest, match="--tenants"):
        set_quota(store, pb.QuotaRequest(tenant="a", set=["dram_quota"]))
    with pytest.raises(BadRequest, match="no tenant 'a'"):
        asyncio.run(clear(store, pb.ClearRequest(tenant="a")))
    assert not status_reply(store.stats()).tenants
    assert b"kvterrace_tenant_" not in generate_latest(make_registry(store.stats))
    store.close()


def test_tenants_in_status_and_metrics(bench):
    b = bench(32, {"a": (8, 2), "b": (None, 0)})
    b.save(b.open("a"), b.prompt(1, 3))
    reply = status_reply(b.store.stats())
    assert [each.name for each in reply.tenants] == ["a", "b", ""]
    assert [each.tenant for each in reply.namespaces] == ["a"]
    console = Console(width=200, record=True, file=None, quiet=False)
    with console.capture() as shown:
        for part in status_tables(reply):
            console.print(part)
    row = next(line for line in shown.get().splitlines() if " a " in line and "dram" in line)
    assert [part for part in ("12.0 KiB", "32.0 KiB", "8.0 KiB") if part in row] == ["12.0 KiB", "32.0 KiB", "8.0 KiB"]
    assert "default" in shown.get()
    assert '"name": "a"' in status_json(reply)
    text = generate_latest(make_registry(b.store.stats)).decode()
    assert 'kvterrace_tenant_used_bytes{tenant="a",tier="dram"} 12288.0' in text
    assert 'kvterrace_tenant_floor_bytes{tenant="a",tier="dram"} 8192.0' in text
    assert 'kvterrace_tenant_quota_bytes{tenant="a",tier="dram"} 32768.0' in text
    assert 'kvterrace_tenant_quota_bytes{tenant="b",tier="dram"}' not in text
    assert 'kvterrace_tenant_sessions{tenant="a"} 1.0' in text
    assert 'kvterrace_tenant_used_bytes{tenant="default",tier="nvme"} 0.0' in text
