"""Who runs, in which order, within which bounds."""

import pytest
from kvterrace.engine.request import RequestRefused

pytestmark = pytest.mark.unit


def order_of_first_runs(engine):
    seen: list[str] = []
    for step in engine.model.chunks:
        seen += [key.split("/")[0] for key, _, _ in step if key.split("/")[0] not in seen]
    return seen


@pytest.mark.parametrize("pages", [6, 9, 14])
def test_a_tiny_pool_serves_everybody_in_the_end(rig, store, prompt, pages):
    for connector in (None, store()):
        engine = rig(pages=pages, connector=connector, max_queue_wait_s=1e9)
        seen = [engine.submit(prompt(seed, 9 + seed), max_tokens=9, n=1 + seed % 2) for seed in range(7)]
        engine.run(5000)
        assert all(set(s.reasons) == {"length"} for s in seen)
        assert all(len(tokens) == 9 for s in seen for tokens in s.tokens.values())
        engine.step(2)
        engine.all_free()


def test_decodes_go_before_prompts_and_a_step_never_exceeds_its_budget(rig, prompt):
    engine = rig(max_step_tokens=10)
    engine.submit(prompt(1, 4), max_tokens=30)
    engine.step()
    engine.submit(prompt(2, 40), max_tokens=2)
    engine.run()
    during = [step for step in engine.model.chunks if len(step) == 2]
    assert all(step[0][2] == 1 for step in during)
    assert [step[1][2] for step in during[:5]] == [9, 9, 9, 9, 4]


def test_a_long_prompt_does_not_stop_those_that_decode(rig, prompt):
    engine = rig(max_step_tokens=8)
    quick = engine.submit(prompt(3, 3), max_tokens=10)
    engine.step()
    engine.submit(prompt(4, 70))
    engine.step(9)
    assert quick.reasons == ["length"]


def test_interactive_goes_first_but_batch_gets_its_turn(rig, prompt):
    engine = rig(max_running=1)
    engine.submit(prompt(0, 5), priority="batch", max_tokens=1, name="batch")
    for i in range(20):
        engine.submit(prompt(i, 5), max_tokens=1, name=f"i{i}")
    engine.run()
    order = order_of_first_runs(engine)
    assert order.index("batch") == 8
    assert [name for name in order if name != "batch"] == [f"i{i}" for i in range(20)]


def test_batch_is_served_while_interactive_keeps_coming(rig, prompt):
    engine = rig(max_running=2)
    batch = engine.submit(prompt(0, 9), priority="batch", max_tokens=5)
    for i in range(120):
        engine.submit(prompt(i, 5), max_tokens=2)
        engine.step()
        if batch.last:
            break
    assert batch.reasons == ["length"]
    engine.run()


def test_the_lowest_priority_and_latest_arrival_is_preempted(rig, prompt):
    engine = rig(pages=9)
    first = engine.submit(prompt(1, 8), max_tokens=20, name="old")
    engine.submit(prompt(2, 8), max_tokens=20, name="batch", priority="batch")
    engine.submit(prompt(3, 8), max_tokens=4, name="new")
    while not engine.core.stats.preemptions:
        engine.step()
    (waiting,) = engine.core._scheduler.queue
    assert waiting.group.request.request_id == "batch"
    assert engine.pool.known(waiting.packed(len(waiting.tokens)), 99) >= 1  # what nobody needed of it is still cached
    engine.run()
    assert first.reasons == ["length"]


def test_a_request_that_waits_too_long_ends_with_queue_timeout(rig, prompt):
    engine = rig(max_running=1, max_queue_wait_s=5.0)
    running = engine.submit(prompt(1, 5), max_tokens=50)
    engine.step()
    late = engine.submit(prompt(2, 5), n=2)
    engine.clock.now += 4.9
    engine.step()
    assert not late.last
    assert engine.core.next_deadline_s() == pytest.approx(105.0)
    engine.clock.now += 0.2
    engine.step()
    assert late.reasons == ["queue_timeout"] * 2
    assert late.receipt is None
    engine.run()
    assert running.reasons == ["length"]
    assert sum(engine.core.stats.prompt_tokens.values()) == 5


def test_a_preempted_request_is_not_timed_out(rig, prompt):
    engine = rig(pages=9, max_queue_wait_s=1.0)
    seen = [engine.submit(prompt(seed, 8), max_tokens=20) for seed in range(2)]
    while not engine.core.stats.preemptions:
        engine.step()
    engine.clock.now += 100
    engine.run()
    assert [s.reasons for s in seen] == [["length"], ["length"]]


@pytest.mark.parametrize(("length", "refused"), [(0, True), (1, False), (31, False), (32, True), (1000, True)])
def test_a_prompt_that_can_never_fit_is_refused(rig, prompt, length, refused):
    by_pool, by_model = rig(pages=8), rig(model_len=32)
    for engine in (by_pool, by_model):
        if refused:
            with pytest.raises(RequestRefused, match="empty" if length == 0 else f"{length} tokens"):
                engine.submit(prompt(1, length))
        else:
            assert engine.one(prompt(1, length), max_tokens=None).reasons == ["length"]


def test_output_ends_where_model_length_or_pool_end(rig, prompt):
    for engine in (rig(pages=8), rig(model_len=32)):
        assert len(engine.one(prompt(1, 20), max_tokens=1000).tokens[0]) == 12


@pytest.mark.parametrize("ids", [[97], [-1], [1, 2, 3.5]])
def test_tokens_outside_the_vocabulary_are_refused(rig, ids):
    with pytest.raises(RequestRefused, match=r"0\.\.96"):
        rig().submit(ids)


def test_a_failed_step_fails_its_requests_only(rig, prompt, caplog):
    engine = rig(max_running=1)
    first, second = engine.submit(prompt(1, 9)), engine.submit(prompt(2, 9))
    engine.step(2)
    engine.model.fail_next = True
    engine.run()
    assert first.reasons == ["error"]
    assert first.last[0].error == "RuntimeError: out of memory"
    assert second.reasons == ["length"]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    assert engine.one(prompt(1, 9)).reasons == ["length"]
    engine.all_free()


def test_a_callback_that_raises_cancels_its_own_request_only(rig, prompt, caplog):
    engine = rig()
    other = engine.submit(prompt(1, 9))
    seen = engine.submit(prompt(2, 9), name="bad")
    group = engine.core._groups["bad"]

    def broken(output):
        seen(output)
        raise ConnectionResetError

    group.on_output = broken
    engine.run()
    assert len(seen.outputs) == 1
    assert other.reasons == ["length"]
    engine.all_free()


def test_clearing_hbm_spares_what_is_in_use(rig, prompt):
    engine = rig()
    engine.one(prompt(1, 17), max_tokens=1)
    seen = engine.submit(prompt(2, 17), max_tokens=9)
    engine.step(2)
    assert engine.core.clear_hbm() == 4
    engine.core.check()
    assert engine.core.clear_hbm() == 0
    engine.run()
    assert seen.reasons == ["length"]


def test_numbers_add_up(rig, store, prompt):
    engine = rig(connector=store(), pages=24)
    seen = [engine.submit(prompt(seed % 3, 20), n=1 + seed % 2, max_tokens=6) for seed in range(6)]
    engine.run()
    stats = engine.core.snapshot()
    assert sum(stats.prompt_tokens.values()) == 120 == sum(s.receipt.prompt_tokens for s in seen)
    assert stats.generated_tokens == 9 * 6
    assert stats.e2e.count == stats.tpot.count == stats.finished["length"] == 9
    assert stats.ttft_hit.count + stats.ttft_miss.count == stats.requests
    assert stats.itl.count == 9 * 5
    assert stats.queue_wait.count == stats.requests == 6
    fed = sum(count for step in engine.model.chunks for _, _, count in step)
    assert stats.prefill_tokens + stats.decode_tokens == fed
    assert stats.pages == stats.pages_free + stats.pages_cached + stats.pages_pinned


def test_one_hit_per_request_and_block(rig, prompt):
    engine = rig()
    tokens = prompt(1, 17)
    for _ in range(3):
        engine.one(tokens, n=2)
    index = engine.pool.index
    blocks = [int(block) for block in index.match(engine_packed(tokens)).blocks]
    assert [int(index.col("hits")[block]) for block in blocks] == [2] * 4  # computed once, then used by two requests


def engine_packed(tokens):
    return b"".join(token.to_bytes(4, "little") for token in tokens)
