"""The trees of two tiers walked as one: against a plain model, and while they change."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from kvterrace.kvstore.catalog import Catalog
from kvterrace.kvstore.merged import Merged
from kvterrace.radix import Lru, PrefixIndex, block_keys, pack_tokens, walk

pytestmark = pytest.mark.unit

B = 2
SEED = b"s" * 32


class Trees:
    """DRAM's index, the lower tier's catalog, and what a model says is in them: tuples of block numbers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.index = PrefixIndex(SEED, block_tokens=B, clock=lambda: self.now)
        self.catalog = Catalog(
            SEED, hash_name="sha256", block_tokens=B, block_bytes=64, policy=Lru(), clock=lambda: self.now
        )
        self.known: tuple[set[tuple[int, ...]], set[tuple[int, ...]]] = (set(), set())

    @staticmethod
    def tokens(path: tuple[int, ...]) -> bytes:
        return pack_tokens(np.repeat(np.array(path, dtype=np.int32), B))

    def add(self, tier: int, path: tuple[int, ...]) -> None:
        self.now += 1.0
        tokens = self.tokens(path)
        if tier:
            self.catalog.add(tokens, 0, block_keys(SEED, tokens, B, hash_name="sha256"))
        else:
            self.index.insert(tokens, [0] * len(path))
        self.known[tier].update(path[:end] for end in range(1, len(path) + 1))

    def remove(self, tier: int, path: tuple[int, ...]) -> None:
        index = self.catalog.index if tier else self.index
        match = index.match(self.tokens(path))
        if len(match) == len(path):
            index.remove(match.last)
        self.known[tier].difference_update([each for each in self.known[tier] if each[: len(path)] == path])

    def merged(self) -> Merged:
        return Merged(SimpleNamespace(index=self.index, unit_bytes=10), self.catalog, "nvme")  # type: ignore[arg-type]

    def expected(self) -> dict[tuple[int, ...], tuple[int, int, int]]:
        """By the path of a run's last block: its first ordinal, and how many blocks each tier has of it."""
        union = self.known[0] | self.known[1]
        below: dict[tuple[int, ...], int] = {}
        for path in union:
            below[path[:-1]] = below.get(path[:-1], 0) + 1
        rows: dict[tuple[int, ...], tuple[int, int, int]] = {}
        for path in union:
            if below.get(path, 0) == 1:
                continue  # it goes on
            start = len(path) - 1
            while start and below[path[:start]] == 1:
                start -= 1
            own = [path[:end] for end in range(start + 1, len(path) + 1)]
            rows[path] = (start, *(sum(each in tier for each in own) for tier in self.known))  # type: ignore[assignment]
        return rows

    def found(self) -> dict[tuple[int, ...], tuple[int, int, int]]:
        merged, rows = self.merged(), {}
        for run in merged.runs(merged.start):
            last = run.counts.index(run.blocks)
            tokens = np.frombuffer(merged.sides[last].index.tokens_to(run.ends[last].block), np.int32)
            rows[tuple(tokens[::B].tolist())] = (run.ordinal, *run.counts)
        return rows


def random_path(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.choice((1, 1, 1, 2, 3)) for _ in range(rng.randint(1, 7)))


@pytest.mark.parametrize("seed", range(15))
def test_the_runs_of_two_tiers_are_those_of_the_merged_tree(seed: int) -> None:
    rng, trees = random.Random(seed), Trees()
    for _ in range(30):
        tier = rng.randrange(2)
        if rng.random() < 0.7:
            trees.add(tier, random_path(rng))
        else:
            trees.remove(tier, random_path(rng))
        assert trees.found() == trees.expected()


def test_every_block_leads_to_the_run_that_has_it() -> None:
    rng, trees = random.Random(1), Trees()
    for _ in range(30):
        trees.add(rng.randrange(2), random_path(rng))
    merged, rows = trees.merged(), trees.expected()
    for tier, known in enumerate(trees.known):
        for path in known:
            match = merged.sides[tier].index.match(trees.tokens(path))
            run = merged.run_with(merged.sides[tier], match.last)
            (owner,) = [
                each
                for each, (first, *_) in rows.items()
                if each[: len(path)] == path and first < len(path) <= len(each)
            ]
            assert (run.ordinal, *run.counts) == rows[owner]
            assert merged.run_to(trees.tokens(path)) == run


@pytest.mark.parametrize("seed", range(10))
def test_a_walk_survives_what_happens_between_its_steps(seed: int) -> None:
    """Nothing raises, no block is told twice at the end of a run that is still there, and what stayed is told."""
    rng, trees = random.Random(seed), Trees()
    lasting = [(9, *random_path(rng)) for _ in range(20)]
    for path in lasting:
        trees.add(rng.randrange(2), path)
    for _ in range(30):
        trees.add(rng.randrange(2), random_path(rng))
    merged, told = trees.merged(), 0
    for run in merged.runs(merged.start):
        told += run.blocks
        for _ in range(3):
            tier, path = rng.randrange(2), random_path(rng)
            trees.add(tier, path) if rng.random() < 0.5 else trees.remove(tier, path)
    assert told >= len({path[:end] for path in lasting for end in range(1, len(path) + 1)})
    assert trees.found() == trees.expected()


def test_a_number_that_was_given_out_again_is_another_block() -> None:
    trees = Trees()
    trees.add(0, (1, 2, 3))
    side = trees.merged().sides[0]
    spot = side.spot(trees.index.match(trees.tokens((1, 2, 3))).last)
    assert side.holds(spot)
    trees.remove(0, (1,))
    assert not side.holds(spot)
    trees.add(0, (4, 5, 6))
    assert not side.holds(spot)
    assert walk.there(trees.index, walk.ROOT, 0.0)
