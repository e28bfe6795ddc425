"""Where tokens came from and what that saved adds up; what prefill takes is measured on clean steps only."""

from types import SimpleNamespace

import pytest
from kvterrace.engine.prefills import Prefills
from kvterrace.engine.receipt import saved_seconds, tokens_by_tier
from kvterrace.engine.request import Receipt
from kvterrace.engine.server.usage import usage_object

pytestmark = pytest.mark.unit


@pytest.fixture
def warm(rig, store, prompt):
    """(engine, connector, tokens) with 33 tokens, eight blocks, in the store and nothing in HBM."""
    connector, tokens = store(), prompt(1, 33)
    engine = rig(connector=connector)
    engine.one(tokens, max_tokens=1)
    engine.core.clear_hbm()
    return engine, connector, tokens


@pytest.mark.parametrize("ok", [None, 6, 5, 4, 0])
def test_dram_and_nvme_in_one_load_sum_to_the_prompt(warm, ok):
    engine, connector, tokens = warm
    connector.nvme_from, connector.ok_blocks = 5, ok
    before = dict(engine.core.stats.prompt_tokens)
    receipt = engine.one(tokens, max_tokens=1).receipt
    loaded = 8 if ok is None else ok
    dram, nvme = 4 * min(5, loaded), 4 * max(0, loaded - 5)
    assert receipt.tokens == {"hbm": 0, "dram": dram, "nvme": nvme, "peer": 0, "computed": 33 - dram - nvme}
    after = engine.core.stats.prompt_tokens
    assert {tier: after[tier] - before[tier] for tier in after} == receipt.tokens


def test_hbm_dram_and_nvme_in_one_prompt(warm, prompt):
    engine, connector, tokens = warm
    engine.one(tokens[:9], max_tokens=1)
    connector.nvme_from = 6
    receipt = engine.one(tokens, max_tokens=1).receipt
    assert receipt.tokens == {"hbm": 8, "dram": 16, "nvme": 8, "peer": 0, "computed": 1}


@pytest.mark.parametrize("loaded", [{"dram": 8, "nvme": 4}, {"nvme": 4, "dram": 8}, {"remote": 12}])
@pytest.mark.parametrize("reused", [0, 4, 12, 20])
def test_credit_never_exceeds_what_was_reused(loaded, reused):
    tokens = tokens_by_tier(21, reused, loaded)
    assert sum(tokens.values()) == 21
    assert tokens["computed"] == 21 - reused
    assert all(count >= 0 for count in tokens.values())


def test_seconds_saved_are_those_of_computing_less_the_wait(warm):
    engine, connector, tokens = warm
    connector.block_s = 0.5
    connector.withheld = {"load"}
    seen = engine.submit(tokens, max_tokens=1)
    engine.step(3)
    engine.clock.now += 1.0
    connector.release()
    engine.run()
    assert seen.receipt.cache_wait_s == pytest.approx(1.0)
    assert seen.receipt.saved_s == pytest.approx(8 * 0.5 - 1.0)
    assert (engine.core.stats.saved_s, engine.core.stats.lost_s) == (pytest.approx(3.0), 0.0)


def test_a_load_cut_short_saves_by_what_was_used(warm):
    engine, connector, tokens = warm
    connector.block_s, connector.ok_blocks = 0.5, 3
    assert engine.one(tokens, max_tokens=1).receipt.saved_s == pytest.approx(1.5)


def test_a_wait_for_nothing_is_a_loss(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    connector.withheld = {"offer"}
    seen = engine.submit(prompt(1, 33), max_tokens=1)
    engine.step(2)
    engine.clock.now += 0.2
    connector.release()
    engine.run()
    assert seen.receipt.saved_s == pytest.approx(-0.2)
    assert (engine.core.stats.saved_s, engine.core.stats.lost_s) == (0.0, pytest.approx(0.2))


def test_what_is_not_known_is_not_credited(warm):
    engine, _, tokens = warm
    assert engine.one(tokens, max_tokens=1).receipt.saved_s is None
    assert (engine.core.stats.saved_s, engine.core.stats.lost_s) == (0.0, 0.0)


def test_without_a_store_nothing_is_saved_or_lost(rig, prompt):
    assert rig().one(prompt(1, 9)).receipt.saved_s == 0.0
    assert saved_seconds({}, 0.0, 0.0) == 0.0
    assert saved_seconds({"dram": 0}, 0.0, 0.5) == -0.5


def test_usage_adds_prompts_up_and_says_null_for_what_is_not_known():
    def receipt(saved_s):
        tokens = {"hbm": 0, "dram": 4, "nvme": 2, "peer": 0, "computed": 1}
        return Receipt(7, tokens, None, 0.0, 0.0, saved_s)

    def saved(*receipts):
        return usage_object(7, 1, receipts)["kvterrace"]["saved_s"]

    assert saved(receipt(1.5), receipt(-0.5)) == 1.0
    assert saved(receipt(1.5), receipt(None)) is None
    assert saved() == 0


@pytest.mark.parametrize("reason", ["slower_to_load", "io", "breaker", "deadline", "full"])
def test_the_stores_reason_reaches_the_receipt_and_the_counters(rig, store, prompt, reason):
    connector = store()
    connector.reason = reason
    engine = rig(connector=connector)
    assert engine.one(prompt(1, 33), max_tokens=1).receipt.miss_reason == reason
    assert engine.core.stats.missed_tokens == {reason: 32}
    assert engine.core.stats.misses == {reason: 1}


# --- observations


def test_a_prompt_alone_is_measured_chunk_by_chunk(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector, max_step_tokens=16)
    engine.model.token_s = 0.01
    engine.one(prompt(1, 40), max_tokens=3)
    assert connector.observed == [
        (0, 16, pytest.approx(0.16)),
        (16, 16, pytest.approx(0.16)),
        (32, 8, pytest.approx(0.08)),
    ]


def test_steps_shared_with_others_are_not_measured(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    engine.model.token_s = 0.01
    engine.submit(prompt(1, 5), max_tokens=10)
    engine.step(3)
    connector.observed.clear()
    engine.submit(prompt(2, 9), max_tokens=2)  # beside a decode
    engine.run()
    for seed in (3, 4):
        engine.submit(prompt(seed, 9), max_tokens=2)  # two prompts in one step
    engine.run()
    assert connector.observed == []


def test_what_was_loaded_is_context_and_not_measured(warm):
    engine, connector, tokens = warm
    engine.model.token_s = 0.01
    connector.observed.clear()
    engine.one(tokens, max_tokens=1)
    assert connector.observed == [(32, 1, pytest.approx(0.01))]


def test_a_step_that_failed_is_not_measured(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    engine.model.fail_next = True
    engine.one(prompt(1, 9))
    assert connector.observed == []


class Steps:
    """Feeds Prefills with steps of a device whose work is only waited for when a result is read."""

    def __init__(self):
        self.reports = []
        self.prefills = Prefills(lambda *report: self.reports.append(report), queued=True)
        self.now = 0.0

    def step(self, *chunks, took=1.0):
        began, self.now = self.now, self.now + took
        self.prefills.step(chunks, began, self.now)
        for chunk in chunks:
            chunk.sequence.computed += chunk.count
        self.now += 0.5  # between steps; the device goes on

    @staticmethod
    def chunk(seq, count, *, final=False):
        return SimpleNamespace(sequence=seq, count=count, final=final)


def sequence(*, decoding=False):
    return SimpleNamespace(computed=0, decoding=decoding)


def test_queued_work_is_measured_up_to_the_result_that_was_read():
    steps, seq = Steps(), sequence()
    steps.step(steps.chunk(seq, 10), took=0.1)
    steps.step(steps.chunk(seq, 10), took=0.1)
    assert steps.reports == []
    steps.step(steps.chunk(seq, 5, final=True), took=2.0)
    assert steps.reports == [(0, 25, pytest.approx(0.1 + 0.5 + 0.1 + 0.5 + 2.0))]
    again = sequence()
    steps.step(steps.chunk(again, 7, final=True), took=1.0)
    assert steps.reports[1:] == [(0, 7, pytest.approx(1.0))]


def test_queued_work_of_others_spoils_a_measurement():
    steps, one, two = Steps(), sequence(), sequence()
    steps.step(steps.chunk(one, 10), steps.chunk(two, 10))  # nothing was read: its work is still going on
    steps.step(steps.chunk(one, 10))
    steps.step(steps.chunk(one, 5, final=True))
    assert steps.reports == []
    steps.step(steps.chunk(two, 10))  # from here on all that is queued is its own
    steps.step(steps.chunk(sequence(decoding=True), 1, final=True))
    steps.step(steps.chunk(two, 5, final=True))
    assert steps.reports == [(20, 5, pytest.approx(1.0))]


def test_queued_work_of_a_sequence_that_was_cut_off_is_not_the_next_ones():
    steps, one, two = Steps(), sequence(), sequence()
    steps.step(steps.chunk(one, 10))
    steps.step(steps.chunk(two, 10))  # the first was cancelled meanwhile
    steps.step(steps.chunk(two, 5, final=True))
    assert steps.reports == []


def test_an_offer_that_was_declined_saves_nothing(rig, store, prompt):
    """No pages: the store brought nothing, whatever it would have been worth."""
    connector, tokens = store(), prompt(1, 33)
    engine = rig(connector=connector, pages=20)
    engine.one(tokens, max_tokens=1)
    engine.core.clear_hbm()
    connector.block_s = 0.5
    engine.submit(prompt(2, 46), max_tokens=20)  # holds up to 17 of the 20 pages
    engine.step(4)
    seen = engine.submit(tokens, max_tokens=1)
    engine.run()
    assert connector.count("decline") > 0
    loaded = sum(seen.receipt.tokens[tier] for tier in ("dram", "nvme"))
    assert seen.receipt.saved_s == pytest.approx(loaded / 4 * 0.5)


def test_what_was_loaded_for_a_request_that_never_ran_is_not_credited(warm):
    engine, connector, tokens = warm
    connector.block_s = 0.5
    connector.withheld = {"load"}
    engine.submit(tokens, name="gone")
    engine.step(2)
    connector.release()
    engine.core.cancel("gone")
    engine.run()
    assert (engine.core.stats.saved_s, engine.core.stats.lost_s) == (0.0, 0.0)
