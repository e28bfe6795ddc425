"""The store may be slow, wrong, silent or broken: requests go on, pages are never reused early, nothing leaks."""

import pytest
from kvterrace.connector.base import LoadDone, Offer, SaveDone

pytestmark = pytest.mark.unit


@pytest.fixture
def warm(rig, store, prompt):
    """(engine, connector, tokens, expected output) with 33 tokens, eight blocks, in the store and nothing in HBM."""

    def build(**config):
        connector, tokens = store(), prompt(1, 33)
        engine = rig(connector=connector, **config)
        expected = engine.one(tokens).tokens[0]
        engine.core.clear_hbm()
        connector.log.clear()
        return engine, connector, tokens, expected

    return build


def test_a_load_cut_short_is_computed_from_there(warm):
    engine, connector, tokens, expected = warm()
    connector.ok_blocks = 3
    seen = engine.one(tokens)
    assert seen.tokens[0] == expected
    assert seen.receipt.tokens == {"hbm": 0, "dram": 12, "nvme": 0, "peer": 0, "computed": 21}
    assert seen.receipt.miss_reason == "corrupt"
    engine.all_free()


def test_a_load_that_brings_nothing_is_computed(warm):
    engine, connector, tokens, expected = warm()
    connector.ok_blocks = 0
    seen = engine.one(tokens)
    assert (seen.tokens[0], seen.receipt.cached_tokens) == (expected, 0)


def test_a_miss_waits_for_no_step_of_its_own(rig, store, prompt):
    engine = rig(connector=store())
    engine.submit(prompt(2, 9))
    assert not engine.step()  # asked
    assert engine.step()  # answered "nothing", and run in the same step
    assert engine.model.chunks == [[("r1/0.1", 0, 9)]]


def test_waiting_requests_are_fetched_while_others_run(warm, prompt):
    engine, connector, tokens, expected = warm(max_running=1)
    engine.submit(prompt(3, 5), max_tokens=12)
    engine.step(2)
    second = engine.submit(tokens)
    engine.step(3)
    assert connector.count("load") == 1  # long before the first one ends
    before = engine.core.stats.steps
    engine.run()
    assert second.tokens[0] == expected
    assert engine.core.stats.steps - before < 20


def test_no_more_than_the_look_ahead_is_fetched(warm, prompt):
    engine, connector, _, _ = warm(max_running=1, kv_fetch_ahead=2)
    connector.withheld = {"offer"}
    for seed in range(6):
        engine.submit(prompt(seed + 10, 9))
    engine.step(5)
    assert connector.count("fetch") == 2
    connector.release()
    engine.run()


def test_a_slow_fetch_lets_others_pass(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    connector.withheld = {"offer"}
    slow, quick = engine.submit(prompt(4, 20)), engine.submit(prompt(5, 3))  # too short for a block: nothing to ask for
    engine.step(12)
    assert quick.reasons == ["length"]
    assert not slow.last
    connector.release()
    engine.run()


@pytest.mark.parametrize("kind", ["offer", "load"])
def test_an_event_that_never_comes_is_given_up(warm, kind):
    engine, connector, tokens, expected = warm(kv_fetch_deadline_s=1, kv_load_deadline_s=1)
    connector.withheld = {kind}
    seen = engine.submit(tokens)
    engine.step(3)
    assert not seen.outputs
    assert engine.core.next_deadline_s() is not None  # the loop will wake up by itself
    engine.clock.now += 2.1
    engine.run()
    assert seen.tokens[0] == expected
    assert seen.receipt.miss_reason == "deadline"
    assert seen.receipt.cache_wait_s == pytest.approx(2.1)
    assert engine.core.stats.late_transfers == 1
    connector.release()
    engine.step(2)
    engine.all_free()


def test_pages_of_an_abandoned_load_are_not_reused_before_its_end(warm, prompt):
    engine, connector, tokens, _ = warm(pages=32)
    connector.withheld = {"load"}
    engine.submit(tokens, name="gone")
    engine.step(2)
    engine.core.cancel("gone")
    engine.core.check()
    assert engine.core.snapshot().pages_held == 8
    others = [engine.submit(prompt(seed, 30), max_tokens=10) for seed in range(20, 24)]
    engine.run()
    expected = [s.tokens[0] for s in others]
    connector.release()  # writes garbage's worth of pages only now
    engine.step(2)
    assert engine.core.snapshot().pages_held == 0
    engine.core.clear_hbm()
    again = [engine.one(prompt(seed, 30), max_tokens=10).tokens[0] for seed in range(20, 24)]
    assert again == expected
    engine.all_free()


def test_pages_being_saved_are_not_reused_before_the_save_ends(rig, store, prompt):
    connector = store()
    engine = rig(pages=16, connector=connector)
    connector.withheld = {"save"}
    tokens = prompt(6, 17)
    expected = engine.one(tokens, max_tokens=2).tokens[0]
    assert engine.pool.pinned == 4
    for seed in range(30, 34):
        engine.one(prompt(seed, 30), max_tokens=4)  # would evict everything that is not pinned
    connector.release()
    engine.step(2)
    engine.core.clear_hbm()
    seen = engine.one(tokens, max_tokens=2)
    assert seen.tokens[0] == expected
    assert seen.receipt.tokens["dram"] == 16
    engine.all_free()


@pytest.mark.parametrize("state", ["queue", "fetching", "loading", "prefill", "decode", "preempted"])
def test_cancelling_leaks_nothing_in_any_state(warm, prompt, state):
    engine, connector, tokens, _ = warm(pages=24, max_running=2 if state == "preempted" else 1, max_step_tokens=16)
    if state in {"queue", "preempted"}:
        engine.submit(prompt(7, 30), max_tokens=60 if state == "preempted" else 8)
        engine.step(3)
    connector.withheld = {"fetching": {"offer"}, "loading": {"load"}}.get(state, set())
    tokens = prompt(8, 33) if state in {"prefill", "decode"} else tokens
    seen = engine.submit(tokens, name="x", max_tokens=40)
    if state == "preempted":
        while not engine.core.stats.preemptions:
            engine.step()
    else:
        engine.step({"queue": 1, "fetching": 1, "loading": 2, "prefill": 2, "decode": 6}[state])
    engine.core.cancel("x")
    engine.core.check()
    assert seen.reasons == ["cancelled"]
    connector.release()
    engine.run()
    engine.step(2)
    engine.all_free()
    assert not connector._cycles


def test_events_that_come_twice_or_for_nobody_are_ignored(warm):
    engine, connector, tokens, expected = warm()
    poll = connector.poll

    def twice():
        events = poll()
        return [
            *events,
            *events,
            Offer("nobody#1", 3, {}, ""),
            LoadDone("nobody#1", 3, {}, ""),
            SaveDone("no", 0, 1, 1),
        ]

    connector.poll = twice
    seen = engine.one(tokens)
    assert seen.tokens[0] == expected
    assert seen.receipt.tokens["dram"] == 32
    assert engine.core.stats.stray_events > 3
    engine.all_free()


@pytest.mark.parametrize("verb", ["fetch", "load", "save", "poll", "cancel"])
def test_a_connector_that_raises_fails_no_request(warm, prompt, verb, caplog):
    engine, connector, tokens, expected = warm()

    def broken(*_):
        raise OSError("socket closed")

    setattr(connector, verb, broken)
    seen = engine.submit(tokens)
    other = engine.submit(prompt(9, 12), name="other")
    connector.withheld = {"load"}
    engine.step(2)
    engine.core.cancel("other") if verb == "cancel" else None
    connector.release()
    engine.run()
    assert seen.tokens[0] == expected
    assert other.reasons == ["cancelled" if verb == "cancel" else "length"]
    engine.core.check()


def test_offered_blocks_without_pages_are_declined_and_computed(warm, prompt):
    engine, connector, tokens, expected = warm(pages=24)
    engine.submit(prompt(10, 60), max_tokens=30)  # 23 pages in the end, 15 at once
    engine.step(4)
    connector.withheld = {"offer"}
    seen = engine.submit(tokens)
    engine.step(45 - 12)
    connector.release()
    engine.run()
    assert connector.count("decline") + connector.count("load") >= 1
    assert seen.tokens[0] == expected
    engine.step(2)
    engine.all_free()


def test_loads_in_flight_never_hold_all_memory(rig, store, prompt):
    connector = store()
    engine = rig(pages=20, connector=connector, kv_fetch_ahead=8)
    prompts = [prompt(seed, 33) for seed in range(40, 48)]
    expected = [engine.one(tokens).tokens[0] for tokens in prompts]
    engine.core.clear_hbm()
    connector.withheld = {"load"}
    seen = [engine.submit(tokens) for tokens in prompts]
    engine.step(3)
    loading = sum(entry[2] for entry in connector.log if entry[0] == "load")
    assert 0 < loading <= 10
    for _ in range(400):  # the loads stay where they are, and yet those behind them run
        engine.step()
    assert sum(1 for s in seen if s.last) >= 6
    connector.release()
    engine.run()
    assert [s.tokens[0] for s in seen] == expected
    engine.step(2)
    engine.all_free()


def test_a_load_that_never_ends_cannot_hang_the_last_request(rig, store, prompt):
    connector = store()
    engine = rig(pages=12, connector=connector)
    tokens = prompt(11, 33)
    engine.one(tokens)
    engine.core.clear_hbm()
    connector.withheld = {"load"}
    engine.submit(tokens, name="lost")
    engine.step(2)
    engine.core.cancel("lost")
    stuck = engine.submit(prompt(12, 40))
    engine.step(3)
    assert not stuck.last  # the load may still end
    engine.clock.now += 31
    engine.step(2)
    assert stuck.reasons == ["error"]
    assert "never ended" in stuck.last[0].error
    assert engine.one(prompt(13, 9)).reasons == ["length"]  # what fits goes on


def test_a_dropped_save_is_offered_again_with_the_next_use(rig, store, prompt):
    connector, tokens = store(), prompt(14, 17)
    engine = rig(connector=connector)
    poll = connector.poll
    connector.poll = lambda: [
        SaveDone(e.request_id, e.start, e.count, 0) if isinstance(e, SaveDone) else e for e in poll()
    ]
    engine.one(tokens, max_tokens=1)
    connector.blocks.clear()
    connector.poll = poll
    engine.one([*tokens, 5, 6, 7, 8], max_tokens=1)  # HBM hit for four blocks, which the store does not have
    engine.step(2)
    assert len(connector.blocks) == 5
    engine.core.clear_hbm()
    assert engine.one([*tokens, 5, 6, 7, 8], max_tokens=1).receipt.tokens["dram"] == 20


def test_what_the_store_has_is_not_saved_again(warm):
    engine, connector, tokens, _ = warm()
    engine.one(tokens, max_tokens=1)
    engine.one(tokens, max_tokens=1)
    assert connector.count("save") == 0
    assert connector.count("fetch") == 1  # the second one was a full hit in HBM


def test_prompt_blocks_are_saved_as_they_fill_and_generated_ones_in_batches(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector, max_step_tokens=16)
    engine.one(prompt(15, 34), max_tokens=50)
    saves = [(start, count) for verb, _, start, count in connector.log if verb == "save"]
    assert saves == [(0, 4), (4, 4), (8, 8), (16, 4)]  # 34 + 50 tokens, the last one without KV: 20 full blocks


def test_close_ends_the_connector_and_takes_its_last_events(warm):
    engine, connector, tokens, _ = warm()
    connector.withheld = {"load"}
    seen = engine.submit(tokens)
    engine.step(2)
    engine.core.close()
    assert connector.closed
    assert seen.reasons == ["cancelled"]
    engine.all_free()


def test_a_latecomer_of_higher_priority_takes_a_place_in_the_look_ahead(warm, prompt):
    engine, _, _, _ = warm(max_running=1, kv_fetch_ahead=2)
    engine.submit(prompt(1, 5), max_tokens=8)
    engine.step(2)
    batch = [engine.submit(prompt(seed, 9), priority="batch") for seed in range(60, 63)]
    engine.step(2)  # both places taken, both ready
    urgent = engine.submit(prompt(63, 9), max_tokens=1)
    while not urgent.last:
        assert engine.step()
        assert not any(s.outputs for s in batch)
    engine.run()
    assert [s.reasons for s in batch] == [["length"]] * 3
    engine.all_free()
