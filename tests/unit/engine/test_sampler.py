"""Tokens are drawn from the distribution that was asked for, and reproducibly."""

import random
from collections import Counter

import pytest
import torch
from kvterrace.engine.request import SamplingParams
from kvterrace.engine.sampler import SHORTLIST, SamplerState, sample

pytestmark = pytest.mark.unit


def state(seed=0, prompt=(), **params):
    return SamplerState(SamplingParams(**params), prompt, random.Random(seed))


def draws(logits, count=4000, **params):
    """Relative frequencies of `count` draws from one row of logits."""
    one = state(**params)
    tally = Counter()
    for _ in range(count // 200):
        tally.update(s.token_id for s in sample(logits.expand(200, -1), [one] * 200))
    return {token: hits / count for token, hits in tally.items()}


def near(frequencies, expected):
    assert set(frequencies) == set(expected)
    for token, share in expected.items():
        assert frequencies[token] == pytest.approx(share, abs=0.03)


PROBS = torch.tensor([[0.4, 0.3, 0.2, 0.1]])


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, {0: 0.4, 1: 0.3, 2: 0.2, 3: 0.1}),
        ({"temperature": 0.5}, {0: 16 / 30, 1: 9 / 30, 2: 4 / 30, 3: 1 / 30}),
        ({"top_k": 2}, {0: 4 / 7, 1: 3 / 7}),
        ({"top_p": 0.65}, {0: 4 / 7, 1: 3 / 7}),
        ({"top_p": 0.01}, {0: 1.0}),
        ({"min_p": 0.6}, {0: 4 / 7, 1: 3 / 7}),
        ({"top_k": 3, "top_p": 0.7}, {0: 4 / 7, 1: 3 / 7}),  # 0.4 + 0.3 of the 0.9 that top_k leaves
    ],
)
def test_frequencies_follow_the_parameters(params, expected):
    near(draws(PROBS.log(), **params), expected)


@pytest.mark.parametrize("params", [{"top_p": 0.999}, {"min_p": 0.9}, {"top_k": SHORTLIST * 2}, {"top_k": 5000}])
def test_a_flat_distribution_is_not_cut_at_the_shortlist(params):
    logits = torch.zeros(1, SHORTLIST * 4)
    one = state(**params)
    seen = {s.token_id for s in sample(logits.expand(60, -1), [one] * 60)}
    seen |= {s.token_id for s in sample(logits.flip(1).expand(300, -1), [one] * 300)}
    assert max(seen) - min(seen) > SHORTLIST + SHORTLIST // 2


def test_filters_agree_with_a_plain_reference():
    generator = torch.Generator().manual_seed(1)
    for trial in range(12):
        logits = torch.randn(1, 50, generator=generator) * 2
        params = {"top_k": trial % 7 * 5, "top_p": 0.5 + trial % 5 / 10, "min_p": trial % 3 / 20}
        probs, order = torch.softmax(logits[0].double(), 0).sort(descending=True)
        if params["top_k"]:
            probs[params["top_k"] :] = 0
        probs = probs / probs.sum()
        probs[probs.cumsum(0) - probs >= params["top_p"]] = 0
        probs[probs < params["min_p"] * probs[0]] = 0
        kept = {int(token) for token, share in zip(order, probs, strict=True) if share > 0}
        one = state(seed=trial, **params)
        seen = {s.token_id for s in sample(logits.expand(600, -1), [one] * 600)}
        assert seen <= kept
        assert all(int(order[i]) in seen for i in range(len(kept)) if probs[i] > 0.05)


def test_a_seed_gives_the_same_tokens_whatever_else_is_in_the_batch():
    logits = torch.randn(6, 40, generator=torch.Generator().manual_seed(2))
    params = [
        {},
        {"top_p": 0.8},
        {"top_k": 4, "temperature": 1.7},
        {"min_p": 0.1},
        {"temperature": 0.0},
        {"top_p": 0.3},
    ]
    together = [state(seed=i, **p) for i, p in enumerate(params)]
    batched = [[s.token_id for s in sample(logits, together)] for _ in range(5)]
    for i, p in enumerate(params):
        alone = state(seed=i, **p)
        assert [sample(logits[i : i + 1], [alone])[0].token_id for _ in range(5)] == [step[i] for step in batched]


def test_penalties_change_what_was_seen_and_nothing_else():
    logits = torch.tensor([[2.0, 1.9, -1.0, 0.0]])

    def greedy(**params):
        return [sample(logits, [one])[0].token_id for one in [state(temperature=0.0, **params)] for _ in range(4)]

    assert greedy() == [0, 0, 0, 0]
    assert greedy(presence_penalty=0.2) == [0, 1, 0, 0]
    assert greedy(frequency_penalty=0.2) == [0, 1, 0, 1]
    assert greedy(repetition_penalty=1.5, prompt=(0,)) == [1, 0, 0, 0]
    assert torch.equal(logits, torch.tensor([[2.0, 1.9, -1.0, 0.0]]))
    negative = torch.tensor([[-1.0, -1.1]])
    assert sample(negative, [state(temperature=0.0, repetition_penalty=1.5, prompt=(0,))])[0].token_id == 1


def test_logprobs_are_the_models_own():
    logits = torch.randn(2, 30, generator=torch.Generator().manual_seed(3))
    expected = torch.log_softmax(logits, -1)
    states = [state(temperature=0.2, top_k=1, logprobs=3, repetition_penalty=2.0), state()]
    first, second = sample(logits, states)
    assert second.logprob is None
    assert first.logprob.token_id == first.token_id
    assert first.logprob.logprob == pytest.approx(float(expected[0, first.token_id]))
    assert [token for token, _ in first.logprob.top] == expected[0].topk(3).indices.tolist()
    (only,) = sample(logits[:1], [state(temperature=0.0, logprobs=0)])
    assert only.logprob.top == ()


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_k": -1},
        {"min_p": 2},
        {"repetition_penalty": 0},
        {"presence_penalty": 3},
        {"frequency_penalty": -3},
        {"max_tokens": 0},
        {"logprobs": 21},
        {"n": 0},
        {"stop": ("",)},
    ],
)
def test_a_parameter_out_of_range_is_named(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        SamplingParams(**bad)


def test_seeded_requests_repeat_and_samples_differ(rig, prompt):
    tokens = prompt(1, 9)

    def run(busy, **params):
        engine = rig()
        if busy:
            for i in range(4):
                engine.submit(prompt(i + 5, 7), temperature=1.0, seed=i, max_tokens=12)
        return engine.one(tokens, temperature=1.0, max_tokens=12, **params).tokens

    assert run(False, seed=7, n=2) == run(True, seed=7, n=2)
    two = run(False, seed=7, n=2)
    assert two[0] != two[1]
    assert run(False, seed=8)[0] != two[0]


def test_a_seed_survives_preemption(rig, prompt):
    def run(pages):
        engine = rig(pages=pages)
        seen = [engine.submit(prompt(i, 10), temperature=1.0, seed=i, max_tokens=20) for i in range(4)]
        engine.run()
        return engine.core.stats.preemptions, [s.tokens[0] for s in seen]

    (none, calm), (some, crowded) = run(64), run(14)
    assert (none, some > 0) == (0, True)
    assert calm == crowded
