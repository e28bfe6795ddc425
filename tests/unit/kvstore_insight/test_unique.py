"""What a cache without limit would hit: in fixed memory, to within the stated error, over windows that slide."""

import numpy as np
import pytest
from kvterrace.kvstore.insight import unique
from kvterrace.kvstore.insight.unique import PRECISION, SPACE_BYTES, Sketch, Windows

pytestmark = pytest.mark.unit

BLOCK = 16


def hashes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << 64, count, dtype=np.uint64)


@pytest.mark.parametrize("count", [1, 100, 5_000, 30_000, 60_000, 400_000])
def test_a_sketch_is_within_the_error_that_is_stated(count):
    stated = 1.04 / (1 << PRECISION) ** 0.5
    errors = []
    for seed in range(12):
        sketch = Sketch()
        sketch.add(hashes(count, seed))
        errors.append(sketch.estimate() / count - 1)
    assert np.std(errors) < 1.5 * stated
    assert abs(np.mean(errors)) < stated, "it is biased"


def test_the_same_again_changes_nothing_and_a_merge_is_a_union():
    first, second = hashes(20_000, 1), hashes(20_000, 2)
    both, other, twice = Sketch(), Sketch(), Sketch()
    both.add(first)
    other.add(second)
    both.merge(other)
    for part in (first, second, first):
        twice.add(part)
    assert both.estimate() == twice.estimate() == pytest.approx(40_000, rel=0.04)
    assert Sketch().estimate() == 0


def test_extreme_hashes_count_like_others():
    sketch = Sketch()
    sketch.add(np.array([0, (1 << 64) - 1, 1], dtype=np.uint64))
    assert 1.9 < sketch.estimate() < 3.2  # 0 and 1 share a register


def test_a_repeated_prompt_repeats_all_its_tokens_and_a_new_one_none():
    windows = Windows(BLOCK)
    for at in range(4):
        windows.add(at, hashes(100), hit_tokens=0)
    windows.add(5.0, hashes(100, seed=9), hit_tokens=0)
    quarter, hour, day = windows.read(6.0)
    for window in (quarter, hour, day):
        assert window.tokens == 500 * BLOCK
        assert window.repeated_tokens == pytest.approx(300 * BLOCK, rel=0.02)
    assert [quarter.window_s, hour.window_s, day.window_s] == [900, 3600, 86_400]


def test_windows_slide():
    windows = Windows(BLOCK)
    windows.add(0.0, hashes(50), hit_tokens=160)
    assert [each.tokens for each in windows.read(600.0)] == [800, 800, 800]
    assert [each.tokens for each in windows.read(1_000.0)] == [0, 800, 800]
    assert [each.tokens for each in windows.read(4_000.0)] == [0, 0, 800]
    assert [each.hit_tokens for each in windows.read(4_000.0)] == [0, 0, 160]
    assert [each.tokens for each in windows.read(100_000.0)] == [0, 0, 0]


def test_a_repeat_counts_in_the_windows_that_reach_back_to_the_first_time():
    windows = Windows(BLOCK)
    windows.add(0.0, hashes(50), hit_tokens=0)
    windows.add(2_000.0, hashes(50), hit_tokens=800)
    quarter, hour, day = windows.read(2_001.0)
    assert quarter.repeated_tokens <= 2 * BLOCK
    assert hour.repeated_tokens == day.repeated_tokens == pytest.approx(800, abs=32)


def test_memory_is_bounded_over_days():
    windows = Windows(BLOCK)
    for minute in range(0, 3 * 24 * 60, 7):
        windows.add(minute * 60.0, hashes(3, seed=minute), hit_tokens=0)
    sketches = sum(len(level) for level in windows._levels) + 1
    assert sketches * (1 << PRECISION) <= SPACE_BYTES == 416 << 10
    assert unique.WINDOWS_S[-1] == 86_400
