"""What goes on the wire: what was asked for, and what the caller may be told."""

import pytest
from kvterrace.kvstore.events.sight import Sight
from kvterrace.kvstore.events.stream import Streams
from kvterrace.kvstore.security.identity import LOCAL, Identity, Role
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=4, head_dim=64, dtype="float16")
READER = Identity("dashboard", "", frozenset({Role.READER}))


@pytest.fixture
async def two(events_bench, prompt):
    """A bench with a block in each of two namespaces, the second of tenant acme."""
    b = events_bench(16)
    other = b.store.open_session(Namespace(b"weights-1", LAYOUT, label="acme's"), client="x")
    await b.lower.saved(prompt(1, 1))
    await b.saved(prompt(2, 2), other)
    return b, other


async def first(streams, request, sees=None) -> pb.EventBatch:
    batches = streams.events(request) if sees is None else streams.events(request, sees)
    try:
        return await anext(batches)
    finally:
        await batches.aclose()


async def test_a_tenants_identity_is_told_of_its_own_namespaces_only(two):
    b, other = two
    sight = Sight({other.fingerprint: "acme"}.get)
    streams = Streams(b.feed, b.store.holdings.label_of)
    told = {
        tenant: {event.fingerprint for event in (await first(streams, pb.EventsRequest(), sight(who))).events}
        for tenant in ("", "acme", "other")
        for who in [Identity("r", tenant, frozenset({Role.READER}))]
    }
    both = {b.lower.session.fingerprint, other.fingerprint}
    assert told == {"": both, "acme": {other.fingerprint}, "other": set()}


async def test_a_filter_by_namespace_and_tier_and_the_label_of_each(two):
    b, other = two
    streams = Streams(b.feed, b.store.holdings.label_of)
    batch = await first(streams, pb.EventsRequest(fingerprint=other.fingerprint, tiers=["dram"], tokens=True))
    (event,) = batch.events
    assert (event.tier, event.label, event.count, event.block_tokens) == ("dram", "acme's", 2, 4)
    assert (batch.node, batch.epoch, batch.reset, batch.more) == ("n", b"epoch-1", True, False)


async def test_token_ids_are_for_operators_and_only_if_asked_for(two):
    b, _ = two
    streams = Streams(b.feed, b.store.holdings.label_of)
    assert streams.refuses(pb.EventsRequest(tokens=True), READER).startswith("tokens: ")
    assert streams.refuses(pb.EventsRequest(tokens=True), LOCAL) == ""
    assert streams.refuses(pb.EventsRequest(), READER) == ""
    assert not any(event.tokens for event in (await first(streams, pb.EventsRequest())).events)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (pb.EventsRequest(epoch=bytes(65)), "epoch"),
        (pb.EventsRequest(fingerprint=b"short"), "fingerprint"),
        (pb.EventsRequest(tiers=["tape"]), "tiers"),
    ],
)
async def test_a_request_that_makes_no_sense_names_its_field(events_bench, request_, field):
    b = events_bench(8)
    assert Streams(b.feed, b.store.holdings.label_of).refuses(request_, LOCAL).startswith(f"{field}: ")
