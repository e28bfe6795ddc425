"""The what-if curve: sampled, in fixed memory, and near the exact one and the simulator's."""

import random
from pathlib import Path

import numpy as np
import pytest
from kvterrace.kvstore.insight.what_if import WhatIf
from kvterrace.kvstore.placement.policies import make_policy
from kvterrace.kvstore.sim.outcome import Setup
from kvterrace.kvstore.sim.replay import replay
from kvterrace.kvstore.sim.trace import BadLines, Request, Trace, read_trace

pytestmark = pytest.mark.unit

SIZE = 65_536
TRACES = Path("/work/shared/traces")


def conversations(seed: int, prompts: int, heads: int = 6) -> list[list[int]]:
    """Prompts as block numbers that stand for their whole prefix: shared heads, turns that grow, one-off tails."""
    rng, fresh = random.Random(seed), iter(range(1 << 30))
    families = [[[next(fresh) for _ in range(rng.randint(4, 40))]] for _ in range(heads)]
    asked = []
    for _ in range(prompts):
        family = families[min(int(rng.expovariate(0.5)), heads - 1)]
        base = rng.choice(family[-12:])
        prompt = base + [next(fresh) for _ in range(rng.randint(1, 12))]
        if rng.random() < 0.7:
            family.append(prompt)
        asked.append(prompt)
    return asked


def exact(prompts: list[list[int]], sizes: list[int]) -> list[float]:
    """By a plain stack: a prompt is looked up, then its blocks are used, leaf first."""
    stack: list[int] = []
    hits, total = dict.fromkeys(sizes, 0), 0
    for prompt in prompts:
        place = {block: depth + 1 for depth, block in enumerate(reversed(stack))}
        for block in prompt:
            total += 1
            for size in sizes:
                hits[size] += place.get(block, 1 << 60) <= size
        used = set(prompt)
        stack = [block for block in stack if block not in used] + prompt[::-1]
    return [hits[size] / total for size in sizes]


def names_of(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


def run(prompts: list[list[int]], most: int, seed: int = 1) -> WhatIf:
    names = names_of(seed, max(max(each) for each in prompts) + 1)
    what_if = WhatIf(most)
    for prompt in prompts:
        what_if.add(0.0, names[prompt], SIZE)
    return what_if


SIZES = [10, 40, 100, 200, 400, 1000]


def test_unsampled_it_is_the_exact_curve():
    prompts = conversations(1, 400)
    what_if = run(prompts, 1 << 14)
    assert what_if.sampled_share == 1.0
    # Buckets of distance are a sixteenth of an octave wide: read between two of them it may be off by their content.
    assert what_if.shares([size * SIZE for size in SIZES]) == pytest.approx(exact(prompts, SIZES), abs=0.02)


def test_it_is_the_curve_of_the_simulator():
    prompts = conversations(2, 400)
    requests = [
        Request(float(at), len(each), 0, np.array(each, dtype="<i4").tobytes(), 0, 0) for at, each in enumerate(prompts)
    ]
    trace = Trace("made up", requests, 0, 1, True, ("",), ("",), BadLines())
    what_if = run(prompts, 1 << 14)
    for size in SIZES[1:]:
        setup = Setup(make_policy("lru"), block_tokens=1, block_bytes=SIZE, dram_blocks=size)
        assert what_if.shares([size * SIZE])[0] == pytest.approx(replay(trace, setup).hit_rate, abs=0.03)


def test_sampled_it_is_near_and_follows_no_more_than_it_may():
    prompts = conversations(3, 1_500, heads=40)
    sizes = [200, 1_000, 4_000]
    wanted = np.array(exact_fast(prompts, sizes))
    errors = []
    for seed in range(5):
        what_if = run(prompts, 1_024, seed)
        assert len(what_if._place) <= 1_024
        assert what_if.sampled_share < 0.5
        errors.append(np.abs(np.array(what_if.shares([size * SIZE for size in sizes])) - wanted))
    assert np.mean(errors) < 0.015
    assert np.max(errors) < 0.06


def exact_fast(prompts: list[list[int]], sizes: list[int]) -> list[float]:
    """As `exact`, by an unsampled WhatIf, which another test holds to it."""
    return run(prompts, 1 << 14).shares([size * SIZE for size in sizes])


@pytest.mark.skipif(not TRACES.exists(), reason="the public traces are not on this machine")
@pytest.mark.parametrize(
    ("name", "sizes", "least_recently_used"),
    [
        ("mooncake_synthetic_trace", [1_000, 5_000, 10_000, 20_000], [0.0841, 0.2793, 0.4239, 0.5718]),
        ("lmcache_agents_256B", [200, 500, 1_000], [0.7498, 0.8955, 0.8985]),
    ],
)
def test_on_public_traces_it_is_within_two_points_of_least_recently_used(name, sizes, least_recently_used):
    """Against figures of an independent simulation."""
    trace = read_trace(TRACES / f"{name}.jsonl.gz")
    errors = []
    for seed in range(2):
        names, what_if = names_of(seed, trace.unique), WhatIf()
        for request in trace.requests:
            what_if.add(0.0, names[np.frombuffer(request.blocks, dtype="<i4")], SIZE)
        found = np.array(what_if.shares([size * SIZE for size in sizes]))
        errors.append(np.abs(found - np.array(least_recently_used)))
    assert np.max(errors) < 0.025
    assert np.mean(errors) < 0.01


def test_distances_are_in_bytes_of_whatever_is_between():
    what_if, names = WhatIf(), names_of(0, 30)
    what_if.add(0.0, names[:10], 4096)
    what_if.add(0.0, names[10:20], 1 << 20)
    what_if.add(0.0, names[:10], 4096)
    below, above = what_if.shares([9 << 20, 12 << 20])
    assert below == 0.0
    assert above == pytest.approx(1 / 3)


def test_what_is_beyond_the_horizon_is_followed_no_longer_and_leaves_the_share_alone():
    what_if = WhatIf(1_000, horizon_bytes=500 * SIZE)
    names = names_of(0, 20_000)
    for start in range(0, 20_000, 50):
        what_if.add(0.0, names[start : start + 50], SIZE)
    assert what_if.sampled_share == 1.0
    assert len(what_if._place) <= 1_000


def test_a_prompt_longer_than_all_that_is_followed():
    what_if, names = WhatIf(64), names_of(0, 5_000)
    for _ in range(3):
        what_if.add(0.0, names, SIZE)
    assert len(what_if._place) <= 64
    assert what_if.shares([6_000 * SIZE])[0] == pytest.approx(2 / 3, abs=0.15)


def test_the_past_fades():
    what_if, names = WhatIf(), names_of(0, 20)
    for _ in range(100):
        what_if.add(0.0, names[:10], SIZE)
    assert what_if.shares([1 << 30])[0] > 0.95
    for at in range(10):
        what_if.add(10 * 86_400.0 + at, names_of(at + 1, 10), SIZE)
    assert what_if.shares([1 << 30])[0] < 0.1


def test_nothing_asked_is_no_curve_but_no_trouble():
    assert WhatIf().shares([1, 2]) == [0.0, 0.0]
