"""What is saved is found and loaded byte by byte, in full blocks only, and leaves no lease behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from kvterrace.connector import KvterraceError
from kvterrace.connector.base import LoadDone, Miss, Offer, SaveDone
from kvterrace.connector.factory import Model, Place, make_connector, namespace_of
from kvterrace.connector.local import check_pool

pytestmark = pytest.mark.unit

B = 4  # block_tokens of the rig


@pytest.mark.parametrize("length", [B - 1, B, B + 1, 5 * B - 1, 5 * B, 5 * B + 1])
def test_a_prefix_of_any_length_comes_back_in_full_blocks(rig, tokens, length: int):
    prompt, full = tokens(length), length // B
    source, target = [40, 3, 17, 18, 9][:full], [5, 6, 30, 8, 1][:full]
    data = torch.randn(full, *rig.pool.shape[1:])
    rig.pool[source] = data
    assert rig.save("a", prompt, 0, source) == SaveDone("a", 0, full, full)
    offer = rig.fetch("b", prompt, 0, full)
    assert (offer.blocks, offer.reason) == (full, "")
    assert sum(offer.tiers.values()) == full * B
    if full:
        assert rig.load("b", target) == LoadDone("b", full, {"dram": full * B}, "")
        assert torch.equal(rig.pool[target], data)
    rig.settle()


def test_only_what_hbm_lacks_is_offered_and_never_more_than_asked(rig, tokens):
    prompt = tokens(8 * B)
    data = rig.saved(prompt, range(8))
    offer = rig.fetch("a", prompt, 2, 6)
    assert offer == Offer("a", 4, {"dram": 4 * B}, "")
    assert rig.load("a", [20, 22, 21, 30]).blocks_ok == 4
    assert torch.equal(rig.pool[[20, 22, 21, 30]], data[2:6])
    assert not rig.pool[31:].any()


def test_a_longer_prompt_gets_the_common_prefix_and_the_reason_for_the_rest(rig, tokens):
    prompt = tokens(4 * B)
    rig.saved(prompt, range(4))
    other = prompt + tokens(3 * B, seed=1)
    assert rig.fetch("a", other, 0, 7) == Offer("a", 4, {"dram": 4 * B}, "never_seen", Miss("never_seen", 4 * B))
    assert rig.fetch("b", tokens(3 * B, seed=2), 0, 3) == Offer("b", 0, {}, "never_seen", Miss("never_seen"))
    rig.connector.decline("a")
    rig.settle()


def test_fewer_pages_than_offered_load_the_first_blocks(rig, tokens):
    prompt = tokens(6 * B)
    data = rig.saved(prompt, range(6))
    assert rig.fetch("a", prompt, 0, 6).blocks == 6
    assert rig.load("a", [50, 51]) == LoadDone("a", 2, {"dram": 2 * B}, "")
    assert torch.equal(rig.pool[50:52], data[:2])
    assert not rig.pool[52:].any()
    rig.settle()


def test_a_save_behind_present_blocks_writes_only_the_new_ones(rig, tokens):
    prompt = tokens(6 * B)
    rig.saved(prompt[: 3 * B * 4], range(3))
    rig.pool[3:6] = torch.randn(3, *rig.pool.shape[1:])
    assert rig.save("a", prompt, 1, range(1, 6)) == SaveDone("a", 1, 5, 3)
    assert rig.save("b", prompt, 0, range(6)) == SaveDone("b", 0, 6, 0)
    assert rig.connector.status().dropped_saves == {}
    assert rig.fetch("c", prompt, 0, 6).blocks == 6
    assert rig.load("c", range(20, 26)).blocks_ok == 6
    assert torch.equal(rig.pool[20:26], rig.pool[:6])


def test_the_next_chunk_may_be_saved_before_the_last_one_has_ended(rig, tokens):
    prompt = tokens(12 * B)
    for start in range(0, 12, 2):
        rig.connector.save("a", prompt[: (start + 2) * B * 4], start, range(start, start + 2))
    assert [rig.wait(SaveDone, "a") for _ in range(6)] == [SaveDone("a", start, 2, 2) for start in range(0, 12, 2)]
    assert rig.fetch("b", prompt, 0, 12).blocks == 12
    rig.connector.decline("b")


def test_a_save_without_its_beginning_in_the_store_is_dropped_with_that_reason(rig, tokens):
    assert rig.save("a", tokens(4 * B), 2, [1, 2]) == SaveDone("a", 2, 2, 0)
    assert rig.connector.status().dropped_saves == {"no_parent": 2}
    rig.settle()


def test_a_corrupted_slot_shortens_the_load_and_leaves_the_store(rig, tokens):
    prompt = tokens(6 * B)
    rig.saved(prompt, range(6))
    rig.client.arena.block(rig.slot_of(prompt, 3))[17] ^= 1
    assert rig.fetch("a", prompt, 0, 6).blocks == 6
    assert rig.load("a", range(10, 16)) == LoadDone("a", 3, {"dram": 3 * B}, "corrupt")
    rig.settle()
    again = rig.fetch("b", prompt, 0, 6)
    assert (again.blocks, again.reason) == (3, "corrupt")
    assert rig.connector.status().corrupt_blocks == 1
    assert rig.connector.status().failures == {"corrupt": 1}
    assert rig.connector.status().misses == {"corrupt": 1}  # the second fetch: the store's reason


def test_a_slot_whose_generation_moved_is_not_served(rig, tokens):
    prompt = tokens(4 * B)
    rig.saved(prompt, range(4))
    slot = rig.slot_of(prompt, 1)
    assert rig.fetch("a", prompt, 0, 4).blocks == 4
    rig.on_loop(lambda: rig.arena.free_slots(np.array([slot], dtype=np.int64)))
    assert rig.load("a", range(10, 14)) == LoadDone("a", 1, {"dram": B}, "stale")
    assert rig.connector.status().corrupt_blocks == 0


def test_the_self_test_at_the_start_leaves_nothing_behind(rig):
    tier = rig.on_loop(rig.store.stats).tiers[0]
    assert (tier.used_bytes, tier.leased_bytes, tier.reserved_bytes) == (0, 0, 0)
    assert rig.on_loop(rig.store.stats).counters.committed_blocks == 0
    assert not rig.pool.any()


def test_a_store_that_means_other_bytes_by_a_slot_is_never_used(make_rig, tokens):
    rig = make_rig(overlapping=True)
    assert rig.started == "self_test"
    assert rig.save("a", tokens(2 * B), 0, [1, 2]) == SaveDone("a", 0, 2, 0)
    assert rig.fetch("b", tokens(2 * B), 0, 2) == Offer("b", 0, {}, "self_test")
    assert rig.connector.status().dropped_saves == {"self_test": 2}
    rig.settle()


def test_many_more_requests_than_an_engine_runs_at_once_all_end_right(make_rig, tokens):
    rig = make_rig(acquire_deadline_s=5.0)
    prompt = tokens(8 * B)
    data = rig.saved(prompt, range(8))
    for i in range(320):
        rig.connector.fetch(f"r{i}", prompt, 0, 8)
    for i in range(320):
        assert rig.wait(Offer, f"r{i}").blocks == 8
        rig.connector.load(f"r{i}", range(8 + i % 7 * 8, 16 + i % 7 * 8))
    for i in range(320):
        assert rig.wait(LoadDone, f"r{i}").blocks_ok == 8
    assert all(torch.equal(rig.pool[8 + k * 8 : 16 + k * 8], data) for k in range(7))
    rig.settle()


def test_counters_say_what_happened(rig, tokens):
    prompt = tokens(4 * B)
    rig.saved(prompt, range(4))
    rig.fetch("a", prompt, 0, 4)
    rig.load("a", range(10, 14))
    rig.fetch("b", tokens(2 * B, seed=5), 0, 2)
    status = rig.connector.status()
    block_bytes = rig.client.namespace.layout.block_bytes
    assert (status.kind, status.connected) == ("embedded", True)
    assert (status.fetches, status.loads, status.loaded_blocks, status.loaded_bytes) == (2, 1, 4, 4 * block_bytes)
    assert (status.saves, status.saved_blocks, status.saved_bytes) == (1, 4, 4 * block_bytes)
    assert status.misses == {"never_seen": 1}
    assert status.failures == {}
    assert (status.fetches_in_flight, status.loads_in_flight, status.save_bytes_in_flight) == (0, 0, 0)


def test_a_pool_that_is_not_what_the_namespace_says_is_refused(rig):
    namespace = namespace_of(rig.pool, Model(weights_digest=bytes(32)))
    with pytest.raises(ValueError, match="pages"):
        check_pool(rig.pool.transpose(1, 2), namespace.layout)
    with pytest.raises(ValueError, match="float16"):
        check_pool(rig.pool.half(), namespace.layout)


def test_an_embedded_connector_keeps_what_it_was_given_and_wakes_its_engine(tokens):
    pool = torch.zeros((8, 1, 2, 2, B, 8), dtype=torch.bfloat16)
    woken = threading.Event()
    model, place = Model(weights_digest=b"w" * 32), Place(dram_bytes=1 << 20)
    connector = make_connector("embedded", pool, woken.set, model=model, place=place)

    def next_event():
        assert woken.wait(5), "nobody was woken"
        woken.clear()
        (event,) = connector.poll()
        return event

    try:
        pool[:2] = torch.randn(2, 1, 2, 2, B, 8).to(torch.bfloat16)
        connector.save("a", tokens(2 * B), 0, [0, 1])
        assert next_event() == SaveDone("a", 0, 2, 2)
        connector.fetch("b", tokens(2 * B), 0, 2)
        assert next_event().blocks == 2
        connector.load("b", [5, 4])
        assert next_event().blocks_ok == 2
        assert torch.equal(pool[[5, 4]], pool[:2])
    finally:
        connector.close()


def test_what_cannot_work_stops_the_start_and_leaves_no_thread():
    model = Model(weights_digest=bytes(32))
    pool = torch.zeros((8, 1, 2, 2, B, 8))
    before = threading.active_count()
    with pytest.raises(KvterraceError, match="needs"):
        make_connector("embedded", pool, lambda: None, model=model, place=Place(dram_bytes=1 << 60))
    with pytest.raises(ValueError, match="contiguous"):
        make_connector("embedded", pool.transpose(2, 3), lambda: None, model=model, place=Place(dram_bytes=1 << 20))
    with pytest.raises(ValueError, match="nonsense"):
        make_connector("sidecar", pool, lambda: None, model=model, place=Place(address="nonsense"))
    assert threading.active_count() == before


def test_without_a_store_every_answer_is_at_hand(tokens):
    connector = make_connector("none", torch.zeros(1), lambda: None, model=Model(weights_digest=bytes(8)))
    connector.fetch("a", tokens(B), 0, 1)
    connector.fetch("b", tokens(B), 0, 1)
    connector.cancel("a")
    connector.save("c", tokens(B), 0, [0])
    assert connector.poll() == [Offer("b", 0, {}, "disabled"), SaveDone("c", 0, 1, 0)]
    assert not connector.status().connected
