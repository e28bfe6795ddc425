"""Which blocks of a path are announced."""

import pytest
from kvterrace.kvstore.cluster.marks import is_mark, marks_of

pytestmark = pytest.mark.unit


def test_a_run_has_the_marks_that_its_blocks_are():
    for first in range(70):
        for count in (0, 1, 2, 15, 16, 17, 100):
            assert marks_of(first, count) == [i for i in range(first, first + count) if is_mark(i)]


def test_the_deepest_mark_tells_the_length_to_within_fifteen_blocks():
    assert [i + 1 for i in marks_of(0, 50)] == [1, 2, 4, 8, 16, 32, 48]
    for length in range(1, 300):
        assert 0 <= length - (marks_of(0, length)[-1] + 1) <= 15


def test_the_longest_prompt_asks_few_keys():
    assert len(marks_of(0, 8192)) == 516
