"""A tenant never learns that another tenant's prompt has its tokens; the operator does."""

from dataclasses import replace

import httpx
import pytest
from kvterrace.kvstore import session as sessions
from kvterrace.kvstore.http import make_app
from kvterrace.kvstore.security.http import CALLER
from kvterrace.kvstore.security.identity import Identity, Role
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.tenants.tenants import Limits, Tenants
from kvterrace.kvstore.types import Miss, Origin, Receipt
from kvterrace.kvstore.why import told
from kvterrace.proto import kv_pb2 as pb
from prometheus_client import CollectorRegistry

pytestmark = pytest.mark.unit

B = 4
TRUTH = Miss("other_namespace", 0, fields=("tenant",))


@pytest.fixture
def shop(desk):
    """A store that acme and zeta share."""
    limits = {"acme": Limits(), "zeta": Limits()}
    return desk(tenants=Tenants(limits, b"s" * 40, dram_bytes=64 * 4096))


def served(session, request_id: str, miss: Miss | None) -> None:
    session.served(Receipt(request_id, {"computed": B}, miss))


def newest(d) -> Receipt:
    return next(iter(d.store.insight.receipts))


async def test_what_is_answered_is_the_same_whether_another_tenant_has_it_or_not(shop) -> None:
    acme, zeta = shop.open(tenant="acme"), shop.open(tenant="zeta")
    shop.save(acme, shop.prompt(1, 2))
    had = await shop.aask(zeta, shop.prompt(1, 2), deadline_s=0)
    not_had = await shop.aask(zeta, shop.prompt(2, 2), deadline_s=0)
    assert had.miss == not_had.miss == Miss("never_seen", 0)
    assert (had.reason, had.tiers, len(had.slots)) == (not_had.reason, not_had.tiers, len(not_had.slots))
    looked = zeta.lookup(shop.prompt(1, 2))
    assert (looked.reason, looked.miss) == ("never_seen", Miss("never_seen", 0))


async def test_the_operator_is_told_with_the_receipt(shop) -> None:
    acme, zeta = shop.open(tenant="acme"), shop.open(tenant="zeta")
    shop.save(acme, shop.prompt(1, 2))
    got = await shop.aask(zeta, shop.prompt(1, 2), deadline_s=0, origin=Origin("chatcmpl-7"))
    served(zeta, "chatcmpl-7", got.miss)
    assert (newest(shop).miss, newest(shop).tenant) == (TRUTH, "zeta")
    assert shop.store.stats().counters.miss_tokens == {"never_seen": 2 * B}, "what all may count is as it was told"
    said = shop.store.explainer.explain(zeta.fingerprint, shop.prompt(1, 2))
    assert said.miss == TRUTH
    assert shop.store.explainer.explain(zeta.fingerprint, shop.prompt(1, 2), operator=False).miss == told(TRUTH)


async def test_the_truth_is_merged_once_and_only_where_the_engine_says_what_it_was_told(shop) -> None:
    acme, zeta = shop.open(tenant="acme"), shop.open(tenant="zeta")
    shop.save(acme, shop.prompt(1, 2))
    for miss in (Miss("never_seen", 4 * B), Miss("never_seen", 2**60), Miss("stale", 0), None):
        await shop.aask(zeta, shop.prompt(1, 2), deadline_s=0, origin=Origin("r"))
        served(zeta, "r", miss)
        assert newest(shop).miss == miss
    await shop.aask(zeta, shop.prompt(1, 2), deadline_s=0, origin=Origin("r"))
    served(acme, "r", Miss("never_seen", 0))
    assert newest(shop).miss == Miss("never_seen", 0), "another session's request of that name"
    served(zeta, "r", Miss("never_seen", 0))
    assert newest(shop).miss == TRUTH
    served(zeta, "r", Miss("never_seen", 0))
    assert newest(shop).miss == Miss("never_seen", 0), "it was another request"


async def test_a_request_that_asks_again_forgets_what_was_true_before(shop) -> None:
    acme, zeta = shop.open(tenant="acme"), shop.open(tenant="zeta")
    shop.save(acme, shop.prompt(1, 2))
    await shop.aask(zeta, shop.prompt(1, 2), deadline_s=0, origin=Origin("r"))
    await shop.aask(zeta, shop.prompt(2, 2), deadline_s=0, origin=Origin("r"))
    served(zeta, "r", Miss("never_seen", 0))
    assert newest(shop).miss == Miss("never_seen", 0)


async def test_prompts_of_requests_without_a_receipt_do_not_pile_up(shop, monkeypatch) -> None:
    monkeypatch.setattr(sessions, "MAX_UNSEEN", 8)
    monkeypatch.setattr(sessions, "MAX_UNSEEN_BYTES", 1024)
    acme, zeta = shop.open(tenant="acme"), shop.open(tenant="zeta")
    shop.save(acme, shop.prompt(1, 2))
    for each in range(20):
        await shop.aask(zeta, shop.prompt(1, 2), deadline_s=0, origin=Origin(f"r{each}"))
    assert list(zeta._unseen) == [f"r{each}" for each in range(12, 20)]
    served(zeta, "r0", Miss("never_seen", 0))
    assert newest(shop).miss == Miss("never_seen", 0), "the oldest is forgotten"
    served(zeta, "r19", Miss("never_seen", 0))
    assert newest(shop).miss == TRUTH
    await shop.aask(zeta, shop.prompt(3, 60), deadline_s=0, origin=Origin("long"))
    assert list(zeta._unseen) == ["r17", "r18", "long"]
    await shop.aask(zeta, shop.prompt(3, 100), deadline_s=0, origin=Origin("longer"))
    assert (zeta._unseen, zeta._unseen_bytes) == ({}, 0)


async def test_where_nobody_shares_the_store_no_prompt_is_remembered(desk) -> None:
    d = desk()
    session = d.open()
    await d.aask(session, d.prompt(1, 2), deadline_s=0, origin=Origin("r"))
    assert session._unseen == {}


async def test_a_tenants_own_namespaces_are_no_secret(shop, space) -> None:
    one, two = shop.open(replace(space, producer="x"), "acme"), shop.open(tenant="acme")
    shop.save(one, shop.prompt(1, 2))
    got = await shop.aask(two, shop.prompt(1, 2), deadline_s=0)
    assert got.miss == Miss("other_namespace", 0, fields=("producer",))


async def test_what_is_cached_of_the_tenants_own_is_said_first(shop) -> None:
    """Else the difference between two answers would tell of the other tenant."""
    acme, zeta = shop.open(tenant="acme"), shop.open(tenant="zeta")
    shop.save(zeta, shop.tokens(1, 2, 3, 9))
    alone = zeta.lookup(shop.tokens(1, 2, 3, 4)).miss
    shop.save(acme, shop.tokens(1, 2, 3, 4))
    got = await shop.aask(zeta, shop.tokens(1, 2, 3, 4), deadline_s=0, origin=Origin("r"))
    assert got.miss == alone
    served(zeta, "r", got.miss)
    assert newest(shop).miss == alone


async def test_a_tenants_reader_sees_its_receipts_as_its_engines_were_told(shop) -> None:
    acme, zeta = shop.open(tenant="acme"), shop.open(tenant="zeta")
    shop.save(acme, shop.prompt(1, 2))
    got = await shop.aask(zeta, shop.prompt(1, 2), deadline_s=0, origin=Origin("r"))
    served(zeta, "r", got.miss)
    served(acme, "s", Miss("evicted", 0, "dram"))
    servicer = Servicer(shop.store, "/dev/shm/none", b"b" * 16)
    mine = lambda fingerprint: fingerprint == zeta.fingerprint  # noqa: E731

    def reasons(request: pb.ReceiptsRequest, *sees) -> list[str]:
        return [each.miss.reason for each in servicer.receipts(request, *sees).receipts]

    assert reasons(pb.ReceiptsRequest()) == ["evicted", "other_namespace"]
    assert reasons(pb.ReceiptsRequest(reason="other_namespace")) == ["other_namespace"]
    assert reasons(pb.ReceiptsRequest(), mine) == ["never_seen"]
    assert reasons(pb.ReceiptsRequest(reason="never_seen"), mine) == ["never_seen"]
    assert reasons(pb.ReceiptsRequest(reason="other_namespace"), mine) == []
    asked = pb.ExplainRequest(fingerprint=zeta.fingerprint, tokens=shop.prompt(1, 2))
    assert servicer.explain(asked).miss.reason == "other_namespace"
    assert servicer.explain(asked, mine).miss.reason == "never_seen"


@pytest.mark.parametrize(("tenant", "code"), [("", 200), ("zeta", 403)])
@pytest.mark.parametrize("path", ["/metrics", "/status.json"])
async def test_what_counts_all_tenants_is_for_none_of_them(path: str, tenant: str, code: int) -> None:
    app = make_app(CollectorRegistry(), lambda: "ready", lambda: "{}", dict)
    who = Identity(name="ann", tenant=tenant, roles=frozenset({Role.READER}))

    async def edge(scope, receive, send) -> None:
        await app({**scope, CALLER: who}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(edge), base_url="http://x") as client:
        assert (await client.get(path)).status_code == code
