"""What the store is told without an answer: prefetches, observations, retention. In order, bounded, never a wait."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from kvterrace.connector import NullConnector
from kvterrace.connector.base import HbmChange, LoadDone
from kvterrace.proto import Retention, RetentionRange

pytestmark = pytest.mark.unit

B = 4
KEEP = Retention(priority=90, ttl_s=60.0)
PIN = Retention(pinned=True)


def test_a_prefetch_names_full_blocks_and_ends_with_the_fetch(rig, tokens):
    prompt = tokens(3 * B + 2)
    assert rig.connector.prefetch("a", prompt, 1)
    (ticket, sent, skip), *others = rig.told("prefetch")
    assert (sent, skip, others) == (prompt[: 3 * B * 4], 1, [])
    assert rig.connector.status().prefetches_in_flight == 1
    rig.fetch("a", prompt, 1, 3)
    assert rig.told("cancel_prefetch") == [(ticket,)]
    assert rig.client.calls[-2:] == ["cancel_prefetch", "acquire"], "what is read for nobody must not come first"
    rig.connector.cancel("a")
    status = rig.connector.status()
    assert (status.prefetches, status.prefetches_in_flight) == (1, 0)
    assert len(rig.told("cancel_prefetch", 2, 0.05)) == 1


def test_cancelling_a_request_cancels_its_prefetch_once(rig, tokens):
    rig.connector.prefetch("a", tokens(B), 0)
    rig.connector.prefetch("b", tokens(B, seed=1), 0)
    for _ in range(2):
        rig.connector.cancel("a")
    ticket = rig.told("prefetch", 2)[0][0]
    assert rig.told("cancel_prefetch", 2, 0.05) == [(ticket,)]
    assert rig.connector.status().prefetches_in_flight == 1


def test_prefetches_are_bounded_and_taken_again_when_others_end(make_rig, tokens):
    rig = make_rig(max_prefetches=2)
    taken = [rig.connector.prefetch(f"r{i}", tokens(B, seed=i), 0) for i in range(4)]
    assert taken == [True, True, False, False]
    rig.connector.cancel("r0")
    assert rig.connector.prefetch("r3", tokens(B, seed=3), 0)
    assert rig.connector.status().prefetches == 3


def test_a_store_that_is_away_takes_no_prefetch(rig, tokens):
    rig.client.away = True
    assert not rig.connector.prefetch("a", tokens(B), 0)
    assert rig.connector.status().prefetches == 0


def test_observations_are_sent_together_and_in_order(make_rig):
    rig = make_rig(observe_every_s=0.05)
    for i in range(8):
        rig.connector.observe(i * 16, 16, 0.01 * (i + 1))
    assert rig.told("observe") == [([(i * 16, 16, 0.01 * (i + 1)) for i in range(8)],)]
    rig.connector.observe(0, 5, 0.1)
    assert rig.told("observe", 2)[1] == ([(0, 5, 0.1)],)


def test_a_flood_of_observations_is_one_bounded_message(make_rig):
    rig = make_rig(observe_every_s=0.1)
    begun = time.perf_counter()
    for i in range(10_000):
        rig.connector.observe(i, 1, 0.001)
    each_s = (time.perf_counter() - begun) / 10_000
    batches = rig.told("observe")
    assert all(len(batch) <= 8 for (batch,) in batches)
    assert (9_999, 1, 0.001) in rig.told("observe", len(batches) + 1, 0.3)[-1][0]
    assert each_s < 1e-4


def test_observations_begin_again_after_the_store_was_away(make_rig):
    rig = make_rig(observe_every_s=0.01)
    rig.client.away = True
    rig.connector.observe(0, 1, 0.1)
    rig.client.away = False
    rig.connector.observe(0, 2, 0.2)
    assert rig.told("observe")[0][0][-1] == (0, 2, 0.2)


@pytest.mark.parametrize("trouble", ["hangs", "raises"])
def test_hints_that_fail_disturb_nothing(make_rig, tokens, trouble):
    rig = make_rig(observe_every_s=0.01, save_deadline_s=0.1)
    prompt = tokens(2 * B)
    setattr(rig.client, trouble, {"prefetch", "cancel_prefetch", "observe", "retain"})
    begun = time.monotonic()
    rig.connector.prefetch("a", prompt, 0)
    rig.connector.observe(0, 1, 0.1)
    rig.connector.retain(prompt, [RetentionRange(0, 2, KEEP)])
    assert time.monotonic() - begun < 0.1
    rig.saved(prompt, [0, 1])
    assert rig.fetch("a", prompt, 0, 2).blocks == 2
    assert rig.load("a", [2, 3]) == LoadDone("a", 2, {"dram": 2 * B}, "")
    rig.settle()


def test_retention_travels_with_the_blocks_of_a_save(rig, tokens):
    prompt = tokens(4 * B)
    ranges = [RetentionRange(0, 3, KEEP), RetentionRange(2, 100, PIN), RetentionRange(7, 9, PIN)]
    rig.connector.save("a", prompt, 0, [0, 1], ranges)
    rig.connector.save("a", prompt, 2, [2, 3], ranges)
    assert rig.told("reserve", 2) == [
        (prompt[: 2 * B * 4], 0, [RetentionRange(0, 2, KEEP)]),
        (prompt, 2, [RetentionRange(2, 3, KEEP), RetentionRange(2, 4, PIN)]),
    ]
    assert rig.told("retain", 1, 0.05) == []


def test_blocks_that_were_there_already_get_their_retention_too(rig, tokens):
    prompt = tokens(4 * B)
    rig.saved(prompt[: 2 * B * 4], [0, 1])
    rig.connector.save("a", prompt, 0, [0, 1, 2, 3], [RetentionRange(0, 4, KEEP)])
    assert rig.told("retain") == [(prompt, [RetentionRange(0, 2, KEEP)])]
    rig.connector.save("b", prompt, 0, [0, 1, 2, 3], [RetentionRange(1, 3, PIN)])
    assert rig.told("retain", 2)[1] == (prompt, [RetentionRange(1, 3, PIN)])


def test_retain_waits_for_the_saves_before_it(rig, tokens):
    """Otherwise it would find nothing to mark."""
    prompt = tokens(2 * B)
    rig.client.late_s = {"reserve": 0.1}
    rig.connector.save("a", prompt, 0, [0, 1])
    rig.connector.retain(prompt, [RetentionRange(0, 9, KEEP)])
    assert rig.told("retain") == [(prompt, [RetentionRange(0, 2, KEEP)])]
    assert rig.client.calls[-2:] == ["commit", "retain"]


def test_retain_sends_no_more_tokens_than_it_marks(rig, tokens):
    prompt = tokens(8 * B)
    rig.connector.retain(prompt, [RetentionRange(1, 3, PIN), RetentionRange(0, 2, KEEP)])
    assert rig.told("retain") == [(prompt[: 3 * B * 4], [RetentionRange(1, 3, PIN), RetentionRange(0, 2, KEEP)])]
    rig.connector.retain(prompt, [RetentionRange(8, 9, PIN)])  # beyond what there is
    rig.connector.retain(prompt, [])
    assert len(rig.told("retain", 2, 0.05)) == 1


def test_the_store_keeps_what_it_was_told(rig, tokens):
    prompt = tokens(4 * B)
    rig.saved(prompt[: B * 4], [0])
    assert rig.save("a", prompt, 0, [0, 1, 2, 3]).saved == 3
    assert rig.retention(prompt) == [(50, 0.0, False)] * 4
    rig.connector.save("b", prompt, 0, [0, 1, 2, 3], [RetentionRange(0, 3, KEEP), RetentionRange(2, 4, PIN)])
    rig.told("retain")
    rig.settle()
    assert rig.retention(prompt) == [(90, 60.0, False)] * 2 + [(50, 0.0, True)] * 2
    other = tokens(3 * B, seed=1)
    rig.connector.save("c", other, 0, [0, 1, 2], [RetentionRange(1, 2, PIN)])
    rig.told("reserve", 2)
    rig.settle()
    assert rig.retention(other) == [(50, 0.0, False), (50, 0.0, True), (50, 0.0, False)]


def test_what_prefill_took_becomes_what_a_lease_is_worth(make_rig, tokens):
    rig = make_rig(observe_every_s=0.001)
    prompt = tokens(4 * B)
    rig.saved(prompt, range(4))
    for i in range(10):
        rig.connector.observe(0, 100, 1.0)
        rig.told("observe", i + 1)
    rig.fetch("a", prompt, 0, 4)
    assert rig.load("a", range(10, 14)).compute_s == pytest.approx(4 * B * 0.01, rel=0.05)


def test_compute_time_is_credited_by_the_share_that_was_loaded(rig, tokens):
    prompt = tokens(4 * B)
    rig.saved(prompt, range(4))
    rig.client.compute_s = 8.0
    rig.fetch("a", prompt, 0, 3)
    assert rig.load("a", [10]).compute_s == pytest.approx(8 / 3)
    rig.fetch("b", prompt, 2, 4)
    assert rig.load("b", [11, 12]).compute_s == pytest.approx(8.0)


@pytest.mark.parametrize("order", [("dram", "nvme"), ("nvme", "dram")])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_tokens_by_tier_sum_to_what_was_loaded_nearest_first(rig, tokens, order, blocks):
    """DRAM keeps the front of a prefix, so a load cut short gave up NVMe's blocks first, however they are listed."""
    prompt = tokens(4 * B)
    rig.saved(prompt, range(4))
    counts = {"dram": 3 * B, "nvme": 1 * B}
    rig.client.tiers = {tier: counts[tier] for tier in order}
    offer = rig.fetch("a", prompt, 0, blocks)
    done = rig.load("a", range(10, 10 + blocks))
    assert done.tiers == offer.tiers
    assert sum(done.tiers.values()) == blocks * B
    assert done.tiers.get("nvme", 0) == max(0, blocks - 3) * B


@pytest.mark.parametrize(("reason", "kind"), [
    ("slower_to_load", "misses"), ("evicted", "misses"), ("full", "misses"),
    ("io", "failures"), ("breaker", "failures"), ("deadline", "failures"),
])  # fmt: skip
def test_trouble_below_is_told_from_a_decision(rig, tokens, monkeypatch, reason, kind):
    from kvterrace.kvstore.types import NO_SLOTS, Acquired

    async def answer(tokens, *, skip, deadline_s, wait, origin):
        return Acquired(0, skip, NO_SLOTS, {}, reason)

    monkeypatch.setattr(rig.client, "acquire", answer)
    assert rig.fetch("a", tokens(B), 0, 1).reason == reason
    assert getattr(rig.connector.status(), kind) == {reason: 1}


def test_without_a_store_hints_go_nowhere(tokens):
    woken = threading.Event()
    connector = NullConnector(woken.set)
    assert not connector.prefetch("a", tokens(B), 0)
    connector.observe(0, 1, 0.1)
    connector.retain(tokens(B), [RetentionRange(0, 1, KEEP)])
    assert connector.poll() == []
    assert not woken.is_set()


def test_after_close_hints_are_ignored(rig, tokens):
    rig.connector.close()
    assert not rig.connector.prefetch("a", tokens(B), 0)
    rig.connector.observe(0, 1, 0.1)
    rig.connector.retain(tokens(B), [RetentionRange(0, 1, KEEP)])
    rig.connector.cancel("a")


@pytest.mark.parametrize(("known", "least_s", "most_s"), [(True, 0.15, 1.0), (False, 1.5, 4.0)])
def test_a_hung_store_is_waited_for_no_longer_than_computing_takes(make_rig, tokens, known, least_s, most_s):
    """Its answer may bring many bytes from a disk, so the deadline grows with them; but then computing must be slow."""
    rig = make_rig(observe_every_s=0.001, acquire_deadline_s=0.1, load_bytes_per_s=4 * 1536 / 1.5)
    prompt = tokens(4 * B)
    if known:
        for i in range(6):
            rig.connector.observe(0, 16, 0.1)
            rig.told("observe", i + 1)
    rig.client.hangs = {"acquire"}
    begun = time.monotonic()
    assert rig.fetch("a", prompt, 0, 4).reason == "deadline"
    assert least_s < time.monotonic() - begun < most_s


def change(*numbers: int, tokens: bytes = b"") -> HbmChange:
    return HbmChange(np.array(numbers, dtype=np.uint32), tokens)


def said(rig, calls: int) -> list[tuple[int, bool]]:
    return [(len(changes), whole) for changes, whole in rig.told("hbm", calls)]


def test_a_session_is_told_everything_before_it_is_told_changes(rig, tokens):
    first = change(0, tokens=tokens(B))
    assert not rig.connector.hbm([first], whole=False), "it knows nothing yet"
    assert rig.connector.hbm([first], whole=True)
    assert rig.connector.hbm([change(0)], whole=False)
    assert rig.connector.hbm([], whole=False), "nothing to say is not said"
    assert said(rig, 2) == [(1, True), (1, False)]


def test_a_long_report_is_cut_and_only_its_first_part_begins_anew(rig, tokens):
    changes = [change(number, tokens=tokens(B, seed=number)) for number in range(600)]
    assert rig.connector.hbm(changes, whole=True)
    assert said(rig, 3) == [(256, True), (256, False), (88, False)]


def test_a_store_that_is_away_has_to_be_told_everything_when_it_is_back(rig, tokens):
    first = change(0, tokens=tokens(B))
    assert rig.connector.hbm([first], whole=True)
    rig.client.away = True
    assert not rig.connector.hbm([change(0)], whole=False)
    rig.client.away = False
    assert not rig.connector.hbm([change(0)], whole=False)
    assert rig.connector.hbm([first], whole=True)
