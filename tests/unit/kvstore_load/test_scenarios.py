"""What is sent, and when: shared beginnings, growing conversations, traces whose equal blocks have equal texts."""

import itertools
import json
import random

import pytest
from kvterrace.kvstore.load.arrivals import BURST_PERIOD_S, BURST_SHARE, bursts, poisson
from kvterrace.kvstore.load.scenarios import MIX, SCENARIOS, MadeUp, Recorded, Scaling, Shape
from kvterrace.kvstore.load.words import WORDS, Words
from kvterrace.kvstore.sim.trace import read_trace

pytestmark = pytest.mark.unit

AS_RECORDED = Scaling()
SHAPE = Shape(prompt_tokens=100, output_tokens=8, shared=0.6, groups=3, turns=4, think_s=2.0)


def made(name, count, *, seed=1, phase="load", shape=SHAPE, per_word=1.0):
    source = MadeUp(shape, Words(seed, per_word), 2.0, random.Random(seed), phase)
    return [(at_s, talk.begin(), talk) for at_s, talk in itertools.islice(SCENARIOS[name](source), count)]


def test_words_are_plain_and_a_longer_text_begins_with_the_shorter():
    words = Words(7, tokens_per_word=1.25)
    assert len(set(WORDS)) > 800
    assert all(word.isascii() and word.isalpha() for word in WORDS)
    assert words.text("a", 1000).startswith(words.text("a", 100) + " ")
    assert len(words.text("a", 1000).split()) == 800
    assert words.text("a", 100) != words.text("b", 100)
    assert words.text("a", 100) != Words(8, 1.25).text("a", 100)
    assert words.text("a", 0) != ""


@pytest.mark.parametrize("arrivals", [poisson, bursts])
def test_arrivals_come_at_the_rate_asked_for_and_are_repeatable(arrivals):
    times = list(itertools.takewhile(lambda at_s: at_s < 4000, arrivals(5.0, random.Random(3))))
    assert times == sorted(times)
    assert len(times) / 4000 == pytest.approx(5.0, rel=0.05)
    assert times[:50] == list(itertools.islice(arrivals(5.0, random.Random(3)), 50))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert min(gaps) < 0.02
    assert max(gaps) > 0.6  # neither evenly spaced nor all at once


def test_a_burst_is_nine_times_as_dense_as_the_quiet_after_it():
    times = list(itertools.takewhile(lambda at_s: at_s < 4000, bursts(5.0, random.Random(3))))
    dense = sum(at_s % BURST_PERIOD_S < BURST_SHARE * BURST_PERIOD_S for at_s in times)
    per_second = dense / (4000 * BURST_SHARE), (len(times) - dense) / (4000 * (1 - BURST_SHARE))
    assert per_second[0] / per_second[1] == pytest.approx(9.0, rel=0.15)


def test_steady_prompts_share_their_groups_beginning_and_nothing_else():
    prompts = [prompt for _, prompt, _ in made("steady", 60)]
    heads = {dict(prompt.messages)["system"] for prompt in prompts}
    tails = {dict(prompt.messages)["user"] for prompt in prompts}
    assert (len(heads), len(tails)) == (SHAPE.groups, 60)
    assert {len(head.split()) for head in heads} == {60}
    assert {len(tail.split()) for tail in tails} == {40}
    assert {prompt.max_tokens for prompt in prompts} == {8}


def test_each_phase_has_texts_of_its_own_and_a_seed_repeats_them():
    alone, load = (
        {text for _, prompt, _ in made("steady", 30, phase=phase) for _, text in prompt.messages}
        for phase in ("alone", "load")
    )
    assert not alone & load
    assert [each[:2] for each in made("mixed", 30)] == [each[:2] for each in made("mixed", 30)]
    assert [each[:2] for each in made("mixed", 30)] != [each[:2] for each in made("mixed", 30, seed=2)]


def test_mixed_requests_have_the_kinds_it_says():
    prompts = [prompt for _, prompt, _ in made("mixed", 600)]
    for name, kind in MIX.items():
        found = [prompt for prompt in prompts if prompt.kind == name]
        assert len(found) / 600 == pytest.approx(kind.share, abs=0.07)
        lengths = {sum(len(text.split()) for _, text in prompt.messages) for prompt in found}
        assert lengths == {round(100 * kind.prompt)}
        assert any(role == "system" for prompt in found for role, _ in prompt.messages) is (kind.shared > 0)


def test_a_conversation_repeats_all_that_was_said():
    (at_s, first, talk), *_ = made("conversation", 5)
    assert at_s > 0
    before, pauses = first, []
    for turn in range(SHAPE.turns - 1):
        think_s, prompt = talk.answered(f"answer {turn}")
        assert prompt.messages[: len(before.messages)] == before.messages
        assert [role for role, _ in prompt.messages[len(before.messages) :]] == ["assistant", "user"]
        assert prompt.messages[-2][1] == f"answer {turn}"
        before = prompt
        pauses.append(think_s)
    assert talk.answered("the last") is None
    assert len(set(pauses)) == len(pauses)


@pytest.fixture
def trace(tmp_path):
    rows = [
        {"timestamp": 5000, "input_length": 40, "output_length": 4, "hash_ids": ["a", "b", "c"]},
        {"timestamp": 7000, "input_length": 48, "output_length": 6, "hash_ids": ["a", "b", "d"]},
        {"timestamp": 8000, "input_length": 56, "output_length": 6, "hash_ids": ["x", "b", "d"]},
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({**row, "block_tokens": 16}) + "\n" for row in rows))
    return read_trace(path)


def texts(trace, scaling=AS_RECORDED):
    return [(at_s, talk.begin()) for at_s, talk in Recorded(trace, Words(1), scaling, "load").arrivals()]


def test_equal_blocks_of_a_trace_have_equal_texts_and_others_do_not(trace):
    (first_s, a), (second_s, b), (_, c) = texts(trace)
    assert (first_s, second_s) == (0.0, 2.0)
    a, b, c = (prompt.messages[0][1].split() for prompt in (a, b, c))
    assert (len(a), len(b), len(c)) == (40, 48, 56)  # exactly as long, partial last blocks and rests without id too
    assert a[:32] == b[:32]
    assert a[32:] != b[32:40]
    assert a[:16] != c[:16]
    assert b[16:32] != c[16:32]  # the same id behind another beginning is another block


def test_a_trace_can_be_faster_smaller_and_leave_out_what_is_too_long(trace):
    (_, a), (at_s, b) = texts(trace, Scaling(speed=4.0, tokens=0.5, limit=27))
    assert at_s == 0.5
    assert (len(a.messages[0][1].split()), a.max_tokens) == (20, 2)
    assert a.messages[0][1].split()[:16] == b.messages[0][1].split()[:16]
    source = Recorded(trace, Words(1), Scaling(limit=47), "load")
    assert len(list(source.arrivals())) == 1
    assert source.too_long == 2


def test_a_trace_of_lengths_only_shares_nothing(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,30,3\n2023-11-16 18:00:01.5,30,5\n")
    (_, a), (at_s, b) = texts(read_trace(path))
    assert (at_s, a.max_tokens, b.kind) == (1.5, 3, "trace")
    assert len(a.messages[0][1].split()) == 30
    assert a.messages[0][1].split()[:4] != b.messages[0][1].split()[:4]
