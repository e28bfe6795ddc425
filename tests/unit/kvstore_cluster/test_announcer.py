"""The announcer against a directory that is a dict: it ends with what the node holds, whatever goes wrong between."""

import asyncio
import hashlib
import random

import pytest
from kvterrace.kvstore.cluster import announcer as module
from kvterrace.kvstore.cluster.announcer import Announcer
from kvterrace.kvstore.cluster.marks import is_mark, marks_of
from kvterrace.kvstore.cluster.stats import ClusterCounters
from kvterrace.kvstore.cluster.valkey import Unavailable

pytestmark = pytest.mark.unit

SPACES = [b"a" * 32, b"b" * 32]


def keys_of(prompt: object, count: int) -> list[bytes]:
    return [hashlib.sha256(f"{prompt} {i}".encode()).digest() for i in range(count)]


class Directory:
    """What was said; `up`: whether it answers; `fails`: how many of the next calls fail."""

    def __init__(self) -> None:
        self.marks: set[tuple[bytes, bytes]] = set()
        self.batches: list[int] = []
        self.up, self.fails = True, 0
        self.calls = 0  # under way

    async def send(self, fingerprint, adds, removes):
        self.calls += 1
        await asyncio.sleep(0)
        self.calls -= 1
        if not self.up or self.fails:
            self.fails = max(0, self.fails - 1)
            raise Unavailable("deadline", "")
        assert not set(adds) & set(removes)
        self.batches.append(len(adds) + len(removes))
        self.marks |= {(fingerprint, key) for key in adds}
        self.marks -= {(fingerprint, key) for key in removes}


class Bench:
    def __init__(self, **options) -> None:
        self.directory = Directory()
        self.counters = ClusterCounters()
        self.announcer = Announcer(self.directory.send, lambda: self.directory.up, self.counters, **options)
        self.task = asyncio.create_task(self.announcer.run())

    def stored(self, keys, *, tier="dram", space=SPACES[0], first=0):
        self.announcer.stored(tier, space, first, keys, b"", b"")
        self.announcer.check()

    async def settle(self):
        """Until nothing waits and nothing is being said: what is on its way may fail, and wait again."""
        for _ in range(2000):
            await asyncio.sleep(0.001)
            if not self.announcer.backlog and not self.announcer._repeats and not self.directory.calls:
                return
        pytest.fail("it does not come to rest")


@pytest.fixture
async def make(monkeypatch):
    monkeypatch.setattr(module, "TICK_S", 0.001)
    made: list[Bench] = []

    def new(**options) -> Bench:
        made.append(Bench(**options))
        return made[-1]

    yield new
    for each in made:
        each.task.cancel()


async def test_only_marks_are_said_and_once_for_all_tiers(make):
    bench = make()
    keys = keys_of("p", 40)
    bench.stored(keys[:20])
    bench.stored(keys[20:], first=20)
    bench.stored(keys, tier="nvme")
    await bench.settle()
    assert bench.directory.marks == {(SPACES[0], keys[i]) for i in marks_of(0, 40)}
    assert sum(bench.directory.batches) == len(marks_of(0, 40))
    assert bench.announcer.marks == len(marks_of(0, 40))


async def test_it_leaves_with_the_last_tier(make):
    bench = make()
    keys = keys_of("p", 16)
    bench.stored(keys)
    bench.stored(keys, tier="nvme")
    bench.announcer.removed("nvme", SPACES[0], keys)
    bench.announcer.removed("nvme", SPACES[0], keys)
    await bench.settle()
    assert len(bench.directory.marks) == 5
    bench.announcer.cleared("dram", SPACES[0])
    await bench.settle()
    assert not bench.directory.marks
    assert not bench.announcer._spaces, "nothing is kept of what is gone"


async def test_what_changes_together_goes_together_and_no_batch_is_too_large(make, monkeypatch):
    monkeypatch.setattr(module, "BATCH", 100)
    bench = make()
    for i in range(250):
        bench.stored(keys_of(i, 1))
    await bench.settle()
    assert bench.directory.batches == [100, 100, 50]


async def test_a_failed_batch_is_said_again_as_things_are_then(make):
    bench = make()
    keys = keys_of("p", 16)
    bench.directory.fails = 3
    bench.stored(keys)
    await asyncio.sleep(0.002)
    bench.announcer.removed("dram", SPACES[0], keys[8:])
    await bench.settle()
    assert bench.directory.marks == {(SPACES[0], keys[i]) for i in marks_of(0, 8)}
    assert bench.counters.announce_failures == 3


async def test_a_backlog_that_is_full_becomes_saying_everything(make):
    bench = make(backlog=50)
    bench.directory.up = False
    kept = [key for i in range(120) for key in keys_of(i, 1)]
    for key in kept:
        bench.stored([key])
        assert bench.announcer.backlog <= 50
    bench.directory.up = True
    await bench.settle()
    assert bench.directory.marks == {(SPACES[0], key) for key in kept}
    assert bench.counters.full_announces["backlog"] >= 1


async def test_everything_is_said_again_when_the_directory_has_lost_it(make):
    bench = make()
    for i, space in enumerate(SPACES):
        bench.stored(keys_of(i, 100), space=space)
    await bench.settle()
    before, bench.directory.marks = bench.directory.marks, set()
    bench.announcer.say_again("joined")
    bench.announcer.cleared("dram", SPACES[1])
    await bench.settle()
    assert bench.directory.marks == {each for each in before if each[0] == SPACES[0]}


async def test_it_refreshes_by_itself_in_small_slices(make, monkeypatch):
    monkeypatch.setattr(module, "REPEATS", 10)
    bench = make(refresh_s=0.05)
    for i in range(35):
        bench.stored(keys_of(i, 1))
    await bench.settle()
    bench.directory.batches.clear()
    bench.directory.marks.clear()
    await asyncio.sleep(0.04)
    await asyncio.sleep(0.1)
    assert len(bench.directory.marks) == 35
    assert max(bench.directory.batches) == 10


@pytest.mark.parametrize("seed", range(20))
async def test_after_any_changes_and_failures_the_directory_has_what_the_node_has(make, seed):
    rng = random.Random(seed)
    bench = make(backlog=rng.choice([1000, 100_000]))
    prompts = [(rng.choice(SPACES), keys_of((seed, i), 40)) for i in range(10)]
    held: set[tuple[str, bytes, bytes]] = set()
    for _ in range(150):
        space, keys = rng.choice(prompts)
        tier = rng.choice(["dram", "nvme"])
        cut = rng.randrange(41)
        if rng.random() < 0.55:
            bench.stored(keys[:cut], tier=tier, space=space)
            held |= {(tier, space, key) for i, key in enumerate(keys[:cut]) if is_mark(i)}
        elif rng.random() < 0.95:
            bench.announcer.removed(tier, space, keys[cut:])
            held -= {(tier, space, key) for key in keys[cut:]}
        else:
            bench.announcer.cleared(tier, space)
            held = {each for each in held if each[:2] != (tier, space)}
        if rng.random() < 0.1:
            bench.directory.fails = rng.randrange(4)
        if rng.random() < 0.05:
            bench.directory.up = not bench.directory.up
        await asyncio.sleep(rng.choice([0, 0, 0.001]))
        bench.announcer.check()
    bench.directory.up = True
    await bench.settle()
    assert bench.directory.marks == {(space, key) for _, space, key in held}
