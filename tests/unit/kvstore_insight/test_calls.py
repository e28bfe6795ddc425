"""What operators and tenants are told over the wire, and how it is bounded."""

from pathlib import Path

import pytest
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.service import insight as calls
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tenants.tenants import Limits, Tenants
from kvterrace.kvstore.types import Miss, Receipt
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=16, head_dim=8, dtype="float32")


class Who:
    """As an identity of that tenant."""

    def __init__(self, tenant: str) -> None:
        self.tenant = tenant


@pytest.fixture
def store():
    tenants = Tenants({name: Limits() for name in ("acme", "other")}, bytes(32), dram_bytes=64 * 4096)
    store = Store(Arena.anonymous(64 * 4096), slab_bytes=4096, tenants=tenants)
    yield store
    store.close()


@pytest.fixture
def servicer(store):
    return Servicer(store, str(Path("none")), b"boot", node="n")


def fill(store: Store) -> None:
    for tenant in ("acme", "other"):
        session = store.open_session(
            Namespace(b"w" * 32, LAYOUT, label=f"model of {tenant}"), client="c", tenant=tenant
        )
        for number in range(3):
            reason = ("never_seen", "evicted", "evicted")[number]
            session.acquire_now(pack_tokens(range(64)), skip=0, deadline_s=0)
            session.served(Receipt(f"{tenant}-{number}", {"computed": 64}, Miss(reason)))
    store.insight.catch_up()


def test_receipts_are_found_by_request_and_reason(store, servicer):
    fill(store)
    every = servicer.receipts(pb.ReceiptsRequest())
    assert [each.request_id for each in every.receipts[:2]] == ["other-2", "other-1"]
    assert every.total == 6
    assert len(servicer.receipts(pb.ReceiptsRequest(reason="evicted")).receipts) == 4
    assert len(servicer.receipts(pb.ReceiptsRequest(reason="evicted", limit=1)).receipts) == 1
    (one,) = servicer.receipts(pb.ReceiptsRequest(request_id="acme-0")).receipts
    assert (one.miss.reason, one.label, one.tenant) == ("never_seen", "model of acme", "acme")


def test_one_answer_has_no_more_than_fits(store, servicer, monkeypatch):
    fill(store)
    monkeypatch.setattr(calls, "MAX_RECEIPTS", 2)
    assert len(servicer.receipts(pb.ReceiptsRequest()).receipts) == 2
    assert len(servicer.receipts(pb.ReceiptsRequest(limit=1_000_000)).receipts) == 2


def test_an_operator_sees_all_and_a_tenant_only_its_own(store, servicer):
    fill(store)
    told = servicer.insights(pb.InsightRequest())
    assert [each.tenant for each in told.spaces] == ["", "other", "acme"]
    assert told.spaces[0].windows[0].tokens == 6 * 64
    assert told.skipped == 0
    sees = servicer.sight(Who("acme"))
    assert [each.tenant for each in servicer.insights(pb.InsightRequest(), sees).spaces] == ["acme"]
    assert {each.tenant for each in servicer.receipts(pb.ReceiptsRequest(), sees).receipts} == {"acme"}


def test_what_was_not_looked_at_is_said(store, servicer):
    session = store.open_session(Namespace(b"w" * 32, LAYOUT), client="c")
    for _ in range(1_030):
        session.acquire_now(pack_tokens(range(16)), skip=0, deadline_s=0)
    assert servicer.insights(pb.InsightRequest()).skipped == 6
