"""What the store is told of a request, and what it says when asked for an operator."""

import threading
import time

import pytest
from kvterrace.connector.base import Miss, Origin, Receipt
from kvterrace.connector.null import NullConnector
from kvterrace.kvstore.types import Acquired, Lookup

pytestmark = pytest.mark.unit


def test_the_origin_goes_with_every_question(rig, tokens):
    origins = []
    inner = rig.client.acquire

    async def acquire(asked, *, origin=None, **options) -> Acquired:
        origins.append(origin)
        return await inner(asked, origin=origin, **options)

    rig.client.acquire = acquire
    rig.connector.fetch("r#1", tokens(16), 0, 4, Origin("chatcmpl-1", "00-aa-bb-01"))
    assert rig.wait(type(rig.fetch("other", tokens(16, seed=2), 0, 4)), "r#1") is not None
    assert origins == [Origin("chatcmpl-1", "00-aa-bb-01"), None]


def test_a_miss_comes_with_the_offer(rig, tokens):
    inner = rig.client.acquire
    miss = Miss("evicted", 0, "dram", 5.0, 60.0)

    async def acquire(asked, **options) -> Acquired:
        found = await inner(asked, **options)
        return Acquired(found.lease, found.first, found.slots, found.tiers, "evicted", found.arena, miss=miss)

    rig.client.acquire = acquire
    offer = rig.fetch("r", tokens(16), 0, 4)
    assert (offer.reason, offer.miss) == ("evicted", miss)
    rig.saved(tokens(16, seed=3), range(4))
    offer = rig.fetch("all", tokens(16, seed=3), 0, 4)
    assert (offer.blocks, offer.reason, offer.miss) == (4, "", None)
    rig.connector.decline("all")
    rig.settle()


def test_a_receipt_reaches_the_store(rig):
    receipt = Receipt("chatcmpl-1", {"hbm": 4, "computed": 1}, Miss("never_seen", 4), saved_s=0.5, ttft_s=0.1)
    rig.connector.served(receipt)
    assert rig.told("served") == [(receipt,)]
    kept = rig.on_loop(lambda: list(rig.store.insight.receipts))
    assert [each.request_id for each in kept] == ["chatcmpl-1"]


def test_receipts_for_a_store_that_is_away_are_dropped(rig):
    rig.client.away = True
    rig.connector.served(Receipt("a", {}))
    rig.client.away = False
    rig.connector.served(Receipt("b", {}))
    assert [told[0].request_id for told in rig.told("served")] == ["b"]


def test_receipts_do_not_pile_up_behind_a_store_that_hangs(make_rig):
    rig = make_rig(max_calls=4, save_deadline_s=0.3)
    rig.client.hangs.add("served")
    for number in range(50):
        rig.connector.served(Receipt(f"r{number}", {}))
    time.sleep(0.1)
    assert rig.client.calls.count("served") <= 4


def test_a_dry_run_says_what_is_there_and_leases_nothing(rig, tokens):
    prompt = tokens(18)
    rig.saved(prompt, range(3))
    found = rig.connector.lookup(prompt, 5.0)
    assert dict(found.tiers) == {"dram": 12}
    assert found.reason
    assert found.miss is None or (found.miss.reason, found.miss.token // 4) == (found.reason, 3)
    rig.settle()


def test_a_dry_run_of_a_store_that_is_away_hangs_or_fails_is_none_in_time(make_rig, tokens):
    rig = make_rig()
    rig.client.raises.add("lookup")
    assert rig.connector.lookup(tokens(16), 5.0) is None
    rig.client.raises.clear()
    rig.client.hangs.add("lookup")
    began = time.monotonic()
    assert rig.connector.lookup(tokens(16), 0.1) is None
    assert time.monotonic() - began < 3
    rig.client.away = True
    assert rig.connector.lookup(tokens(16), 5.0) is None
    rig.client.away = False
    rig.connector.close()
    assert rig.connector.lookup(tokens(16), 5.0) is None


def test_a_dry_run_that_waits_while_the_connector_closes_ends(make_rig, tokens):
    rig = make_rig()
    rig.client.hangs.add("lookup")
    answers: list[Lookup | None] = []
    asking = threading.Thread(target=lambda: answers.append(rig.connector.lookup(tokens(16), 30.0)))
    asking.start()
    while "lookup" not in rig.client.calls:
        time.sleep(0.002)
    rig.connector.close()
    asking.join(10)
    assert answers == [None]


def test_without_a_store_there_is_nobody_to_tell_or_to_ask(tokens):
    connector = NullConnector(lambda: None)
    connector.served(Receipt("a", {}))
    connector.fetch("r", tokens(16), 0, 4, Origin("a"))
    assert connector.lookup(tokens(16), 1.0) is None
