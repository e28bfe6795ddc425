"""Slots: long runs where they can be had, nothing lost, slabs back when empty."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvterrace.kvstore.slabs import SlabPool

pytestmark = pytest.mark.unit


def runs(pages, slot_pages):
    return 1 + int((np.diff(pages) != slot_pages).sum())


def test_slots_taken_together_lie_together():
    pool = SlabPool(100, 100 * 4096)
    slots = pool.size_class(2 * 4096)
    first, hole, last = slots.take(10), slots.take(3), slots.take(10)
    assert [runs(each, 2) for each in (first, hole, last)] == [1, 1, 1]
    slots.give(hole)
    assert runs(slots.take(8), 2) == 1, "not cut up to fill the hole"
    slots.give(first)
    assert runs(slots.take(13), 2) == 1, "neighbours that were freed apart are one run again"
    pool.check()


def test_when_no_run_is_long_enough_the_longest_are_used():
    pool = SlabPool(32, 32 * 4096)
    slots = pool.size_class(4096)
    pages = slots.take(32)
    slots.give(np.concatenate([pages[0:4], pages[10:11], pages[20:28]]))
    assert sorted(slots.take(12).tolist()) == [*range(0, 4), *range(20, 28)]


def test_a_slab_serves_another_size_once_it_is_empty():
    pool = SlabPool(64, 16 * 4096)
    small, large = pool.size_class(4096), pool.size_class(5 * 4096)
    taken = small.take(64)
    assert (large.obtainable, pool.free_slabs) == (0, 0)
    small.give(taken[16:31])
    assert large.obtainable == 0
    small.give(taken[31:32])
    assert (large.obtainable, pool.free_slabs) == (3, 1)
    assert large.take(3).tolist() == [16, 21, 26]
    pool.check()


def test_a_slot_larger_than_a_slab_is_refused():
    with pytest.raises(ValueError, match="larger than a slab"):
        SlabPool(64, 16 * 4096).size_class(17 * 4096)


def test_a_double_free_is_noticed():
    slots = SlabPool(16, 16 * 4096).size_class(4096)
    pages = slots.take(4)
    slots.give(pages[:2])
    with pytest.raises(AssertionError):
        slots.give(pages[:1])
    with pytest.raises(AssertionError):
        slots.give(pages[[2, 2]])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 3]), st.integers(0, 12), st.integers(0, 1 << 30)), max_size=60))
def test_nothing_overlaps_and_nothing_is_lost(steps):
    """Random takes and gives of three sizes; every page has one owner at most."""
    pool, held, free = SlabPool(60, 20 * 4096), {}, True
    for size, count, chance in steps:
        slots = pool.size_class(size * 4096)
        free = not free
        if free and held.get(size):
            gone = np.random.default_rng(chance).permutation(held[size])[:count]
            slots.give(gone)
            held[size] = [page for page in held[size] if page not in set(gone.tolist())]
        else:
            held.setdefault(size, []).extend(slots.take(min(count, slots.obtainable)).tolist())
        pool.check()
        covered = [page + i for each, pages in held.items() for page in pages for i in range(each)]
        assert len(covered) == len(set(covered))
        assert max(covered, default=0) < 60
        assert slots.used == len(held.get(size, ()))
