"""Every request that ran leaves one receipt: in the ring, on its last output, and with the store."""

import dataclasses

import pytest
from kvterrace.connector.base import Miss
from kvterrace.engine.receipts import Receipts
from kvterrace.engine.request import TIERS, Receipt

pytestmark = pytest.mark.unit


def ring(engine, limit=1000, **which):
    return engine.core.receipts.newest(limit, **which)


def test_a_receipt_is_complete_with_the_first_token(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    engine.model.token_s = 0.01
    seen = engine.submit(prompt(1, 33), name="chatcmpl-1", max_tokens=5)
    engine.step(3)
    assert len(seen.tokens[0]) >= 1
    (kept,) = ring(engine)
    assert kept.request_id == "chatcmpl-1"
    assert kept.tokens == dict.fromkeys(TIERS, 0) | {"computed": 33}
    assert kept.miss == Miss("never_seen")
    assert kept.ttft_s == kept.computed_s == pytest.approx(0.33)
    assert kept.time_s > 1e9
    engine.run()
    assert ring(engine) == [kept], "later tokens change nothing"
    assert seen.receipt == kept


def test_the_store_hears_the_same_once(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    engine.one(prompt(1, 33), name="a", n=3)
    (told,) = connector.receipts
    (kept,) = ring(engine)
    assert (told.request_id, told.tokens, told.miss) == ("a", kept.tokens, kept.miss)
    assert (told.ttft_s, told.computed_s) == (kept.ttft_s, kept.computed_s)
    assert told.prompt == b"", "the store was asked about it"
    assert connector.origins[0].request_id == "a"


def test_a_prompt_that_is_all_in_hbm_comes_with_its_receipt(rig, store, prompt):
    connector, tokens = store(), prompt(1, 35)
    engine = rig(connector=connector)
    engine.one(tokens)
    engine.one(tokens)
    assert connector.count("fetch") == 1
    told = connector.receipts[1]
    assert told.tokens["hbm"] == 32
    assert told.miss is None
    assert told.prompt == b"".join(token.to_bytes(4, "little") for token in tokens[:32])


@pytest.mark.parametrize("reason", ["disconnected", "busy", "error", "disabled"])
def test_a_store_that_did_not_look_gets_the_prompt(rig, store, prompt, reason):
    connector = store()
    connector.reason = reason
    engine = rig(connector=connector)
    engine.one(prompt(1, 33))
    assert len(connector.receipts[0].prompt) == 32 * 4


def test_one_that_is_aborted_while_it_computes_leaves_one_without_a_first_token(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector, max_step_tokens=8)
    seen = engine.submit(prompt(1, 33), name="gone")
    engine.step(3)
    engine.core.cancel("gone")
    engine.run()
    (kept,) = ring(engine)
    assert kept.ttft_s is None
    assert kept == seen.receipt
    assert connector.receipts[0].ttft_s == 0.0


def test_one_that_never_ran_leaves_none(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector, max_running=1)
    engine.submit(prompt(1, 9), max_tokens=30)
    seen = engine.submit(prompt(2, 9), name="queued")
    engine.step(3)
    engine.core.cancel("queued")
    engine.run()
    assert seen.receipt is None
    assert len(ring(engine)) == len(connector.receipts) == 1


def test_a_failed_step_still_leaves_receipts(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    engine.model.fail_next = True
    seen = engine.one(prompt(1, 9))
    assert seen.reasons == ["error"]
    assert [each.ttft_s for each in ring(engine)] == [None]
    assert len(connector.receipts) == 1


def test_without_a_store_there_is_a_ring_all_the_same(rig, prompt):
    engine = rig()
    engine.one(prompt(1, 33))
    engine.one(prompt(1, 33))
    second, first = ring(engine)
    assert first.miss == Miss("not_in_hbm")
    assert (second.miss, second.tokens["hbm"]) == (None, 32)


def test_without_a_store_hbm_says_where_a_prompt_parts(rig, prompt):
    engine, tokens = rig(), prompt(1, 33)
    engine.one(tokens, max_tokens=1)
    changed = [*tokens[:18], (tokens[18] + 1) % 90, *tokens[19:]]
    miss = engine.one(changed).receipt.miss
    assert (miss.reason, miss.token) == ("diverged", 18)
    assert engine.one([tokens[0], *prompt(2, 20)]).receipt.miss == Miss("not_in_hbm"), "one token is no head"


def test_a_preempted_request_has_one_receipt(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector, pages=10)
    for seed in range(4):
        engine.submit(prompt(seed, 9), max_tokens=16, name=f"r{seed}")
    engine.run()
    assert engine.core.stats.preemptions > 0
    assert sorted(each.request_id for each in ring(engine)) == ["r0", "r1", "r2", "r3"]
    assert sorted(each.request_id for each in connector.receipts) == ["r0", "r1", "r2", "r3"]


# --- why


def test_what_the_store_knows_of_a_miss_reaches_the_receipt(rig, store, prompt):
    connector, tokens = store(), prompt(1, 33)
    engine = rig(connector=connector)
    engine.one(tokens[:17])
    engine.core.clear_hbm()
    connector.reason, connector.miss = "diverged", Miss("diverged", 18, cached=b"\x07\0\0\0")
    receipt = engine.one(tokens).receipt
    assert receipt.miss == connector.miss
    assert receipt.miss_reason == "diverged"


def test_a_load_that_fell_short_is_the_miss(rig, store, prompt):
    connector, tokens = store(), prompt(1, 33)
    engine = rig(connector=connector)
    engine.one(tokens)
    engine.core.clear_hbm()
    connector.ok_blocks = 3
    assert engine.one(tokens).receipt.miss == Miss("corrupt", 12)


def test_no_pages_is_the_miss_where_there_was_no_room(rig, store, prompt):
    connector, tokens = store(), prompt(1, 33)
    engine = rig(connector=connector, pages=20)
    engine.one(tokens, max_tokens=1)
    engine.core.clear_hbm()
    engine.submit(prompt(2, 46), max_tokens=4)  # holds 13 of the 20 pages
    engine.step(3)
    seen = engine.submit(tokens, max_tokens=1)
    engine.run()
    assert seen.receipt.tokens["dram"] == 4 * (20 - 13)
    assert seen.receipt.miss == Miss("no_pages", 28)


def test_blocks_that_came_since_move_the_miss_on(rig, store, prompt):
    """Two requests ask at once; what the first computes, the second finds in HBM: its own break is further on."""
    connector, tokens = store(), prompt(1, 33)
    connector.reason, connector.miss = "diverged", Miss("diverged", 2, cached=b"\x07\0\0\0")
    engine = rig(connector=connector, max_running=1)
    engine.submit(tokens[:17], max_tokens=1)
    second = engine.submit(tokens, max_tokens=1)
    engine.run()
    assert second.receipt.tokens["hbm"] == 16
    assert second.receipt.miss == Miss("never_seen", 16)


def test_cache_off_is_told(rig, prompt):
    assert rig(prefix_cache=False).one(prompt(1, 33)).receipt.miss == Miss("cache_off")


# --- a request that is to use no cache


def test_a_request_without_cache_reuses_nothing_and_leaves_nothing(rig, store, prompt):
    connector, tokens = store(), prompt(1, 33)
    engine = rig(connector=connector)
    warm = engine.one(tokens)
    fetches, saves = connector.count("fetch"), connector.count("save")
    cold = engine.one(tokens, cache=False, n=2)
    assert cold.receipt.tokens["computed"] == 33
    assert cold.receipt.miss == Miss("cache_off")
    assert cold.tokens[0] == warm.tokens[0]
    assert (connector.count("fetch"), connector.count("save")) == (fetches, saves)
    assert connector.receipts[-1].prompt == b""
    engine.one(prompt(2, 33), cache=False, max_tokens=9)
    assert engine.one(prompt(2, 33)).receipt.tokens["computed"] == 33, "it left nothing in HBM"
    engine.all_free()


def test_requests_without_cache_survive_preemption(rig, store, prompt):
    engine = rig(connector=store(), pages=10)
    alone = [rig().one(prompt(seed, 9), max_tokens=16).tokens[0] for seed in range(4)]
    seen = [engine.submit(prompt(seed, 9), max_tokens=16, cache=False) for seed in range(4)]
    engine.run()
    assert engine.core.stats.preemptions > 0
    assert [each.tokens[0] for each in seen] == alone
    engine.all_free()


# --- the ring


def receipt(name, reason=""):
    tokens = dict.fromkeys(TIERS, 0) | {"computed": 1}
    return Receipt(1, tokens, Miss(reason) if reason else None, 0.0, 0.0, request_id=name)


def test_the_ring_keeps_the_newest_and_counts_all():
    kept = Receipts(3, now=lambda: 5.0)
    for number in range(5):
        assert kept.add(receipt(f"r{number}")) == dataclasses.replace(receipt(f"r{number}"), time_s=5.0)
    assert [each.request_id for each in kept.newest(10)] == ["r4", "r3", "r2"]
    assert [each.request_id for each in kept.newest(2)] == ["r4", "r3"]
    assert kept.total == 5


def test_the_ring_finds_by_id_by_call_and_by_reason():
    kept = Receipts()
    for name, reason in (("cmpl-1/0", ""), ("cmpl-1/1", "evicted"), ("cmpl-11", "evicted"), ("cmpl-2", "")):
        kept.add(receipt(name, reason))
    assert [each.request_id for each in kept.newest(9, request_id="cmpl-1")] == ["cmpl-1/1", "cmpl-1/0"]
    assert [each.request_id for each in kept.newest(9, request_id="cmpl-1/0")] == ["cmpl-1/0"]
    assert [each.request_id for each in kept.newest(9, reason="evicted")] == ["cmpl-11", "cmpl-1/1"]
    assert kept.newest(9, request_id="cmpl") == []
