"""What is remembered of blocks that left, and what that takes."""

import numpy as np
import pytest
from kvterrace.kvstore.ghosts import DEFAULT_ENTRIES, ENTRY_BYTES, Ghost, Ghosts

pytestmark = pytest.mark.unit


class Clock:
    now = 1e6

    def __call__(self) -> float:
        return self.now


def names(*traces: int):
    return np.array(traces, dtype=np.uint64)


def test_a_ghost_says_why_from_where_how_long_ago_and_how_long_it_had_been_there() -> None:
    clock = Clock()
    ghosts = Ghosts(16, clock)
    clock.now += 5
    ghosts.add(names(3, 7), "evicted", "dram", np.array([60.0, 2.5]))
    clock.now += 40
    ghosts.add(names(4), "corrupt", "nvme", np.array([9.0]))
    clock.now += 2
    assert ghosts.of(3) == Ghost("evicted", "dram", 42.0, 60.0)
    assert ghosts.of(7) == Ghost("evicted", "dram", 42.0, 2.5)
    assert ghosts.of(4) == Ghost("corrupt", "nvme", 2.0, 9.0)
    assert ghosts.of(5) is None


def test_the_tier_that_a_block_left_last_counts() -> None:
    ghosts = Ghosts(16, Clock())
    ghosts.add(names(3), "evicted", "dram", np.array([1.0]))
    ghosts.add(names(3), "cleared", "nvme", np.array([2.0]))
    found = ghosts.of(3)
    assert found is not None
    assert (found.reason, found.tier, found.kept_s) == ("cleared", "nvme", 2.0)


def test_the_newest_takes_a_place_and_a_wrong_name_is_never_answered() -> None:
    ghosts = Ghosts(8, Clock())
    ghosts.add(names(1, 9), "evicted", "dram", np.array([1.0, 2.0]))
    assert ghosts.of(1) is None
    assert ghosts.of(9) is not None
    assert ghosts.of(17) is None


def test_a_trace_above_all_signed_numbers_is_found() -> None:
    ghosts = Ghosts(8, Clock())
    ghosts.add(names(2**64 - 1), "evicted", "dram", np.array([1.0]))
    assert ghosts.of(2**64 - 1) is not None


def test_memory_is_what_is_said_and_does_not_grow() -> None:
    ghosts = Ghosts(1 << 10)
    columns = [each for each in vars(ghosts).values() if isinstance(each, np.ndarray)]
    assert sum(each.nbytes for each in columns) == ENTRY_BYTES << 10
    ghosts.add(np.arange(1, 5000, dtype=np.uint64), "evicted", "dram", np.ones(4999))
    assert [len(each) for each in vars(ghosts).values() if isinstance(each, np.ndarray)] == [1 << 10] * 4
    assert ENTRY_BYTES * DEFAULT_ENTRIES < 5 << 20


@pytest.mark.parametrize("entries", [0, -4, 3, 1000])
def test_entries_must_be_a_power_of_two(entries: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Ghosts(entries)


def test_after_half_a_year_times_are_still_within_a_second() -> None:
    clock = Clock()
    ghosts = Ghosts(8, clock)
    clock.now += 180 * 86_400 + 0.4
    ghosts.add(names(1), "evicted", "dram", np.array([3.0]))
    clock.now += 10
    found = ghosts.of(1)
    assert found is not None
    assert abs(found.gone_s - 10) <= 1
