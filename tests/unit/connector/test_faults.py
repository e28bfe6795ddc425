"""Whatever the store does, every call ends in its one event, in time, and nothing stays leased."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from kvterrace.connector.base import LoadDone, Offer, SaveDone
from kvterrace.connector.copiers import HostCopier

pytestmark = pytest.mark.unit

B = 4


class Valve(HostCopier):
    """A copier whose copies wait until they are let through."""

    chunk_bytes = 1

    def __init__(self, pool: torch.Tensor) -> None:
        super().__init__(pool)
        self.open = threading.Event()
        self.entered = threading.Event()

    def to_pages(self, source, page, fence):
        self.entered.set()
        assert self.open.wait(10)
        return super().to_pages(source, page, fence)

    def to_slots(self, page, target, fence):
        self.entered.set()
        assert self.open.wait(10)
        return super().to_slots(page, target, fence)


@pytest.fixture
def valve(rig) -> Valve:
    valve = Valve(rig.pool)
    rig.connector._worker.copier = valve
    yield valve
    valve.open.set()


def filled(rig, tokens, blocks: int = 4, seed: int = 0) -> bytes:
    prompt = tokens(blocks * B, seed=seed)
    rig.saved(prompt, range(blocks))
    return prompt


class TestDeadlines:
    def test_zero_means_that_nobody_waits_and_nobody_is_asked(self, make_rig, tokens):
        rig = make_rig(acquire_deadline_s=0)
        before = list(rig.client.calls)
        rig.connector.fetch("a", tokens(B), 0, 1)
        assert rig.poll() == [Offer("a", 0, {}, "deadline")]
        assert rig.client.calls == before

    def test_a_store_that_never_answers_costs_the_deadline_and_no_more(self, make_rig, tokens):
        rig = make_rig(acquire_deadline_s=0.1, save_deadline_s=0.1)
        prompt = filled(rig, tokens)
        rig.client.hangs = {"acquire", "reserve", "release", "commit", "abort"}
        begun = time.monotonic()
        assert rig.fetch("a", prompt, 0, 4) == Offer("a", 0, {}, "deadline")
        assert 0.05 < time.monotonic() - begun < 1.0
        assert rig.save("b", tokens(B, seed=3), 0, [1]) == SaveDone("b", 0, 1, 0)
        assert rig.connector.status().failures == {"deadline": 1}
        assert rig.connector.status().dropped_saves == {"deadline": 1}
        begun = time.monotonic()
        rig.connector.close()
        assert time.monotonic() - begun < 3.0

    def test_the_lease_of_a_late_answer_is_given_back(self, make_rig, tokens):
        rig = make_rig(acquire_deadline_s=0.05, save_deadline_s=0.05)
        prompt = filled(rig, tokens)
        rig.client.late_s = {"acquire": 0.2, "reserve": 0.2}
        assert rig.fetch("a", prompt, 0, 4) == Offer("a", 0, {}, "deadline")
        assert rig.save("b", tokens(2 * B, seed=3), 0, [8, 9]).saved == 0
        assert rig.on_loop(rig.store.stats).tiers[0].leased_bytes > 0
        rig.settle()
        assert rig.poll() == []

    def test_a_load_that_may_take_no_time_ends_short(self, make_rig, tokens):
        rig = make_rig(load_base_s=1e-9, load_bytes_per_s=1e18)
        prompt = filled(rig, tokens)
        rig.fetch("a", prompt, 0, 4)
        assert rig.load("a", range(10, 14)) == LoadDone("a", 0, {}, "deadline")
        rig.settle()


class TestTrouble:
    def test_a_client_that_raises_is_a_miss_with_a_log_line(self, rig, tokens, caplog):
        prompt = filled(rig, tokens)
        rig.client.raises = {"acquire", "reserve"}
        for i in range(3):
            assert rig.fetch(f"a{i}", prompt, 0, 4) == Offer(f"a{i}", 0, {}, "error")
        assert rig.save("b", tokens(B, seed=3), 0, [1]) == SaveDone("b", 0, 1, 0)
        assert len([r for r in caplog.records if "RuntimeError" in r.message]) == 1
        rig.client.raises = set()
        assert rig.fetch("c", prompt, 0, 4).blocks == 4

    def test_a_commit_that_raises_drops_the_save_and_frees_its_slots(self, rig, tokens):
        rig.client.raises = {"commit"}
        assert rig.save("a", tokens(2 * B), 0, [1, 2]) == SaveDone("a", 0, 2, 0)
        rig.settle()
        assert rig.on_loop(rig.store.stats).tiers[0].used_bytes == 0

    def test_without_a_store_answers_come_at_once_and_it_is_used_again_when_it_is_back(self, rig, tokens):
        prompt = filled(rig, tokens)
        rig.client.away = True
        rig.connector.fetch("a", prompt, 0, 4)
        rig.connector.save("b", prompt, 0, [1])
        assert rig.poll() == [Offer("a", 0, {}, "disconnected"), SaveDone("b", 0, 1, 0)]
        assert not rig.connector.status().connected
        rig.client.away = False
        assert rig.fetch("c", prompt, 0, 4).blocks == 4

    def test_a_store_without_room_drops_the_save(self, make_rig, tokens):
        rig = make_rig(slots=4)
        held = filled(rig, tokens)
        assert rig.fetch("a", held, 0, 4).blocks == 4  # nothing can be evicted meanwhile
        assert rig.save("b", tokens(2 * B, seed=9), 0, [1, 2]) == SaveDone("b", 0, 2, 0)
        assert rig.connector.status().dropped_saves == {"full": 2}
        rig.connector.cancel("a")
        rig.settle()

    def test_calls_out_of_turn_are_answered_and_break_nothing(self, rig, tokens):
        prompt = filled(rig, tokens)
        rig.connector.decline("nobody")
        rig.connector.cancel("nobody")
        assert rig.load("nobody", [1]) == LoadDone("nobody", 0, {}, "error")
        rig.fetch("a", prompt, 0, 4)
        assert rig.fetch("a", prompt, 0, 4) == Offer("a", 0, {}, "busy")
        assert rig.load("a", range(10, 15)).reason == "error"  # five pages for four blocks
        assert rig.load("a", range(10, 14)).blocks_ok == 4
        rig.settle()

    def test_more_calls_than_the_bound_are_refused_not_queued(self, make_rig, tokens):
        rig = make_rig(max_calls=4, acquire_deadline_s=0.3)
        rig.client.hangs = {"acquire"}
        for i in range(10):
            rig.connector.fetch(f"r{i}", tokens(B), 0, 1)
        reasons = [rig.wait(Offer, f"r{i}").reason for i in range(10)]
        assert reasons == ["deadline"] * 4 + ["busy"] * 6


class TestCancel:
    def test_while_the_store_is_asked_no_offer_comes_and_its_lease_goes_back(self, rig, tokens):
        prompt = filled(rig, tokens)
        rig.client.late_s = {"acquire": 0.05}
        rig.connector.fetch("a", prompt, 0, 4)
        rig.connector.cancel("a")
        rig.settle()
        assert rig.wait(Offer, "a", 0.2) is None
        rig.client.late_s = {}
        assert rig.fetch("a", prompt, 0, 4).blocks == 4

    def test_an_offer_not_yet_polled_is_withdrawn(self, rig, tokens):
        prompt = filled(rig, tokens)
        rig.connector.fetch("a", prompt, 0, 4)
        end = time.monotonic() + 5
        while not rig.connector._outbox._events and time.monotonic() < end:
            time.sleep(0.001)
        rig.connector.cancel("a")
        assert rig.poll() == []
        rig.settle()

    def test_an_offer_taken_is_given_up(self, rig, tokens):
        prompt = filled(rig, tokens)
        for end in (rig.connector.cancel, rig.connector.decline):
            assert rig.fetch("a", prompt, 0, 4).blocks == 4
            end("a")
            rig.settle()
        assert rig.load("a", [1]).reason == "error"

    def test_a_load_under_way_ends_in_one_event_after_the_last_write(self, rig, tokens, valve):
        valve.open.set()
        prompt = filled(rig, tokens, blocks=8)
        valve.open.clear()
        valve.entered.clear()
        rig.fetch("a", prompt, 0, 8)
        rig.connector.load("a", range(20, 28))
        assert valve.entered.wait(5)
        rig.connector.cancel("a")
        assert rig.wait(LoadDone, "a", 0.1) is None  # the pages may still be written
        assert rig.fetch("a", prompt, 0, 8) == Offer("a", 0, {}, "busy")
        valve.open.set()
        done = rig.wait(LoadDone, "a")
        assert done.reason == "cancelled"
        assert done.blocks_ok < 8
        pages = rig.pool.clone()
        rig.settle()
        assert torch.equal(pages, rig.pool)
        assert rig.wait(LoadDone, "a", 0.1) is None

    def test_saves_go_on(self, rig, tokens, valve):
        prompt = tokens(2 * B)
        rig.connector.save("a", prompt, 0, [1, 2])
        assert valve.entered.wait(5)
        rig.connector.cancel("a")
        valve.open.set()
        assert rig.wait(SaveDone, "a") == SaveDone("a", 0, 2, 2)


class TestBacklog:
    def test_a_full_backlog_drops_at_once_and_is_free_again_afterwards(self, make_rig, tokens):
        rig = make_rig(save_backlog_bytes=4 * 1536)
        valve = Valve(rig.pool)
        rig.connector._worker.copier = valve
        rig.connector.save("a", tokens(3 * B, seed=1), 0, [0, 1, 2])
        rig.connector.save("b", tokens(2 * B, seed=2), 0, [3, 4])
        assert rig.poll() == [SaveDone("b", 0, 2, 0)]
        rig.connector.save("c", tokens(B, seed=3), 0, [5])
        assert rig.connector.status().save_bytes_in_flight == 4 * 1536
        valve.open.set()
        assert rig.wait(SaveDone, "a").saved == 3
        assert rig.wait(SaveDone, "c").saved == 1
        assert rig.connector.status().dropped_saves == {"backlog": 2}
        assert rig.save("b2", tokens(2 * B, seed=2), 0, [3, 4]).saved == 2

    def test_a_save_larger_than_the_backlog_goes_alone(self, make_rig, tokens):
        rig = make_rig(save_backlog_bytes=1536)
        assert rig.save("a", tokens(5 * B), 0, range(5)).saved == 5


class TestClose:
    def test_everything_under_way_ends_and_later_calls_are_answered(self, rig, tokens, valve):
        valve.open.set()
        prompt = filled(rig, tokens)
        valve.open.clear()
        valve.entered.clear()
        rig.fetch("loading", prompt, 0, 4)
        rig.fetch("offered", prompt, 0, 4)
        rig.connector.load("loading", range(10, 14))
        assert valve.entered.wait(5)
        rig.connector.save("saving", tokens(B, seed=7), 0, [30])
        rig.client.hangs = {"acquire"}
        rig.connector.fetch("waiting", prompt, 0, 4)
        threading.Timer(0.5, valve.open.set).start()
        rig.connector.close()
        rig.connector.close()
        events = {event.request_id: event for event in rig.poll()}
        assert len(events) == 3
        assert events["loading"].reason in {"", "cancelled"}
        assert events["waiting"].blocks == 0
        assert isinstance(events["saving"], SaveDone)
        rig.connector.load("offered", [1])
        rig.connector.fetch("x", prompt, 0, 4)
        rig.connector.save("y", prompt, 0, [1])
        assert rig.poll() == [
            LoadDone("offered", 0, {}, "disconnected"),
            Offer("x", 0, {}, "disconnected"),
            SaveDone("y", 0, 1, 0),
        ]
        assert not rig.connector.status().connected
        alive = [thread.name for thread in threading.enumerate() if thread.name.startswith("kvterrace-")]
        assert not [name for name in alive if name.startswith(("kvterrace-bridge", "kvterrace-copy"))]

    def test_saves_that_can_end_are_not_lost(self, rig, tokens):
        for i in range(8):
            rig.connector.save(f"s{i}", tokens(2 * B, seed=i), 0, [2 * i, 2 * i + 1])
        rig.connector.close()
        assert sum(event.saved for event in rig.poll()) == 16
