"""Whatever engines do, the reason of a miss is what a book of all that happened says."""

import asyncio
import random
from dataclasses import replace

import pytest

pytestmark = pytest.mark.unit

B = 4
BLOCKS = 5
STEPS = 150
Prompt = tuple[int, ...]  # a number a block


class Book:
    """Of one namespace: which prefixes are there since when, and what became of the others: (reason, gone, kept)."""

    def __init__(self) -> None:
        self.here: dict[Prompt, float] = {}
        self.gone: dict[Prompt, tuple[str, float, float]] = {}

    def settle(self, left: set[Prompt], reason: str, now: float) -> None:
        for prefix in set(self.here) - left:
            self.gone[prefix] = reason, now, now - self.here.pop(prefix)

    def found(self, prompt: Prompt) -> int:
        return next((n for n in range(len(prompt)) if prompt[: n + 1] not in self.here), len(prompt))


class World:
    """Two namespaces of one store, a book of each, and random engines."""

    def __init__(self, desk, space, seed: int) -> None:
        self.rng = random.Random(seed)
        self.desk = desk(12, ghost_entries=1 << 14)
        self.sessions = [self.desk.open(), self.desk.open(replace(space, producer="x"))]
        self.books = [Book(), Book()]

    @staticmethod
    def block(number: int) -> list[int]:
        """Of the same parent, blocks differ at the token that is their number."""
        return [1] * number + [9] + [number] * (B - 1 - number)

    def pack(self, prompt: Prompt) -> bytes:
        return self.desk.tokens(*(token for number in prompt for token in self.block(number)))

    def present(self, which: int) -> set[Prompt]:
        known = self.books[which].here
        return {each for each in known if self.sessions[which].lookup(self.pack(each)).miss is None}

    def step(self) -> None:
        self.desk.now += self.rng.choice([1.0, 2.0, 16.0])
        prompt = tuple(self.rng.randrange(3) for _ in range(self.rng.randrange(1, BLOCKS)))
        which = self.rng.randrange(2)
        reason = "evicted"
        if self.rng.random() < 0.04:
            asyncio.run(self.desk.store.clear(self.sessions[which].fingerprint))
            reason = "cleared"
        else:
            self.desk.save(self.sessions[which], self.pack(prompt))
            for n in range(len(prompt)):
                self.books[which].here.setdefault(prompt[: n + 1], self.desk.now)
        for each, book in enumerate(self.books):
            book.settle(self.present(each), reason if each == which else "evicted", self.desk.now)
        self.check()

    def check(self) -> None:
        self.desk.now += 1.0
        which = self.rng.randrange(2)
        prompt = tuple(self.rng.randrange(4) for _ in range(BLOCKS))
        miss = self.desk.ask(self.sessions[which], self.pack(prompt)).miss
        book, other = self.books[which], self.books[1 - which]
        have = book.found(prompt)
        assert miss is not None
        wanted, place = prompt[: have + 1], have * B
        beside = [each[have] for each in book.here if len(each) == have + 1 and each[:have] == prompt[:have]]
        nearest = max((min(number, prompt[have]) for number in beside), default=-1)
        told = (miss.reason, miss.token)
        if wanted in book.gone:
            reason, gone, kept = book.gone[wanted]
            assert (told, miss.gone_s, miss.kept_s) == ((reason, place), self.desk.now - gone, kept)
        elif wanted in other.here:
            assert (told, miss.fields) == (("other_namespace", place), ("producer",))
        elif nearest >= (0 if have else 2):
            assert told == ("diverged", place + nearest)
        else:
            assert told == ("never_seen", place)


@pytest.mark.parametrize("seed", range(3))
def test_every_reason_is_what_happened(desk, space, seed: int) -> None:
    world = World(desk, space, seed)
    for _ in range(STEPS):
        world.step()
    counts = world.desk.store.stats().counters.miss_tokens
    assert {"evicted", "cleared", "diverged"} <= set(counts)
