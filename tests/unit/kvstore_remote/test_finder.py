"""How much of a prompt is there: exact, in few rounds, within the deadline."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvterrace.kvstore.elsewhere import Holder
from kvterrace.kvstore.remote.finder import ABSENT_S, Finder, _probes
from kvterrace.kvstore.tiers.base import Usage
from kvterrace.kvstore.tiers.remote import RemoteTier, Trouble

pytestmark = pytest.mark.unit

SPACE = b"s" * 32


def keys(count: int) -> list[bytes]:
    return [number.to_bytes(32, "big") for number in range(count)]


class Asked:
    """Objects that only answer `exists`: they have the first `there`."""

    text = "asked"
    evicted = 0

    def __init__(self, there: int, width: int = 16) -> None:
        self.there, self.width, self.rounds = there, width, []
        self.slow = 0.0
        self.trouble = None

    async def exists(self, names, *, by):
        await asyncio.sleep(self.slow)
        if self.trouble is not None or asyncio.get_running_loop().time() > by:
            raise self.trouble or Trouble("deadline", "late")
        self.rounds.append(len(names))
        assert [name.ordinal for name in names] == [int.from_bytes(name.key, "big") for name in names]
        return [name.ordinal < self.there for name in names]

    def usage(self):
        return Usage(0, 0, 0)

    async def close(self):
        pass


def finder(objects, clock=lambda: 0.0) -> Finder:
    return Finder(RemoteTier(objects, clock=clock), clock=clock)


@pytest.mark.parametrize(("width", "rounds"), [(16, 4), (4096, 2)])
@pytest.mark.parametrize("there", [0, 1, 2, 15, 16, 17, 4095, 8190, 8191, 8192])
async def test_it_is_exact_and_takes_few_rounds(there, width, rounds):
    objects = Asked(there, width)
    found = await finder(objects).find(SPACE, keys(8192), 0, deadline_s=5.0)
    assert found == ([Holder("remote", there)] if there else [])
    assert len(objects.rounds) <= rounds
    assert max(objects.rounds) <= width + 1


async def test_the_blocks_before_the_first_are_not_asked_for():
    objects = Asked(30)
    assert await finder(objects).find(SPACE, keys(64)[20:], 20, deadline_s=5.0) == [Holder("remote", 30)]
    assert await finder(objects).find(SPACE, keys(64)[40:], 40, deadline_s=5.0) == []


async def test_nobody_is_asked_twice_in_a_short_time_for_what_is_not_there():
    now, objects = [100.0], Asked(0)
    made = finder(objects, lambda: now[0])
    for _ in range(3):
        assert await made.find(SPACE, keys(8), 0, deadline_s=5.0) == []
    assert len(objects.rounds) == 1
    now[0] += ABSENT_S + 0.1
    await made.find(SPACE, keys(8), 0, deadline_s=5.0)
    assert len(objects.rounds) == 2


async def test_what_could_not_be_found_out_is_not_remembered_as_absent():
    objects = Asked(8)
    objects.trouble = Trouble("io", "broken")
    made = finder(objects)
    assert await made.find(SPACE, keys(8), 0, deadline_s=5.0) == []
    objects.trouble = None
    assert await made.find(SPACE, keys(8), 0, deadline_s=5.0) == [Holder("remote", 8)]


async def test_at_the_deadline_what_is_known_is_answered():
    objects = Asked(5000)
    objects.slow = 0.05
    (found,) = await finder(objects).find(SPACE, keys(8192), 0, deadline_s=0.12)
    assert 1 <= found.blocks <= 5000


async def test_questions_that_fail_pause_the_asking():
    objects = Asked(8)
    objects.trouble = Trouble("unreachable", "gone")
    made = finder(objects)
    for _ in range(3):
        await made.find(SPACE, keys(8), 0, deadline_s=5.0)
    assert not made.available


@given(st.integers(0, 500), st.integers(1, 500), st.integers(1, 40))
@settings(max_examples=60)
def test_probes_are_new_counts_that_end_the_search(known, span, width):
    counts = _probes(known, known + span, width)
    assert counts == sorted(set(counts))
    assert known < counts[0] == known + 1
    assert counts[-1] == known + span
    assert len(counts) <= width + 1
