"""A few hundred random calls from a seed, with faults: events exactly once, bytes right, nothing leaked."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest
import torch
from kvterrace.connector.base import LoadDone, Offer, SaveDone

pytestmark = pytest.mark.unit

B = 4
PREFIXES = 6  # families of prompts; the content of block i of family f is a function of both
LONGEST = 8


class Engine:
    """The engine's side of the contract, with everything it is owed."""

    def __init__(self, rig, tokens, seed: int) -> None:
        self.rig = rig
        self.rng = random.Random(seed)
        self.tokens = tokens
        self.free = list(range(64))
        self.number = 0
        self.offers_due: dict[str, tuple[int, int, int]] = {}
        self.standing: dict[str, tuple[int, int, int]] = {}
        self.loads_due: dict[str, tuple[int, int, list[int]]] = {}
        self.saves_due: dict[tuple[str, int], list[int]] = {}
        self.counts: Counter[str] = Counter()

    def content(self, family: int, block: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(family * 1000 + block)
        return torch.randn(self.rig.pool.shape[1:], generator=generator)

    def step(self) -> None:
        self.number += 1
        turns = {self.fetch: 6, self.decide: 6, self.save: 3, self.cancel: 2, self.fault: 1}
        self.rng.choices(list(turns), list(turns.values()))[0]()
        time.sleep(self.rng.choice([0, 0, 0.002]))
        self.collect()

    def fetch(self) -> None:
        if len(self.offers_due) + len(self.standing) + len(self.loads_due) > 12:
            return
        family, most = self.rng.randrange(PREFIXES), self.rng.randint(1, LONGEST)
        have = self.rng.randrange(most)
        ident = f"r{self.number}"
        self.offers_due[ident] = (family, have, most)
        self.rig.connector.fetch(ident, self.tokens(most * B, seed=family), have, most)

    def save(self) -> None:
        count = self.rng.randint(1, LONGEST)
        if len(self.free) < count:
            return
        family, ident = self.rng.randrange(PREFIXES), f"s{self.number}"
        pages = [self.free.pop(self.rng.randrange(len(self.free))) for _ in range(count)]
        for block, page in enumerate(pages):
            self.rig.pool[page] = self.content(family, block)
        self.saves_due[ident, 0] = pages
        self.rig.connector.save(ident, self.tokens(count * B, seed=family), 0, pages)

    def decide(self) -> None:
        if not self.standing:
            return
        ident = self.rng.choice(list(self.standing))
        family, have, blocks = self.standing.pop(ident)
        count = min(self.rng.randint(1, blocks), len(self.free))
        if self.rng.random() < 0.1:
            self.rig.connector.decline(ident)
            return
        pages = [self.free.pop(self.rng.randrange(len(self.free))) for _ in range(count)]
        self.loads_due[ident] = (family, have, pages)
        self.rig.connector.load(ident, pages)

    def cancel(self) -> None:
        known = [*self.offers_due, *self.standing, *self.loads_due]
        if not known:
            return
        ident = self.rng.choice(known)
        self.rig.connector.cancel(ident)
        self.offers_due.pop(ident, None)
        self.standing.pop(ident, None)

    def fault(self) -> None:
        client = self.rig.client
        client.away = self.rng.random() < 0.1
        client.raises = {verb for verb in ("acquire", "reserve", "commit") if self.rng.random() < 0.1}
        client.late_s = {verb: 0.03 for verb in ("acquire", "reserve") if self.rng.random() < 0.2}

    def collect(self) -> None:
        for event in self.rig.connector.poll():
            self.counts[type(event).__name__] += 1
            if isinstance(event, Offer):
                family, have, most = self.offers_due.pop(event.request_id)
                assert event.blocks <= most - have
                if event.blocks:
                    self.standing[event.request_id] = (family, have, event.blocks)
            elif isinstance(event, LoadDone):
                family, have, pages = self.loads_due.pop(event.request_id)
                assert sum(event.tiers.values()) == event.blocks_ok * B
                for i in range(event.blocks_ok):
                    self.counts["blocks"] += 1
                    assert torch.equal(self.rig.pool[pages[i]], self.content(family, have + i))
                self.free += pages
            else:
                assert isinstance(event, SaveDone)
                self.free += self.saves_due.pop((event.request_id, event.start))


@pytest.mark.parametrize("seed", range(4))
def test_a_random_schedule_ends_every_call_once_with_the_right_bytes(make_rig, tokens, seed: int):
    rig = make_rig(slots=40, acquire_deadline_s=0.02, save_backlog_bytes=16 * 1536)
    engine = Engine(rig, tokens, seed)
    for _ in range(400):
        engine.step()
    rig.client.away, rig.client.raises, rig.client.late_s = False, set(), {}
    for ident in list(engine.standing):
        rig.connector.cancel(ident)
    engine.standing.clear()
    for _ in range(500):
        engine.collect()
        for ident in list(engine.standing):
            rig.connector.decline(ident)
            del engine.standing[ident]
        if not (engine.offers_due or engine.loads_due or engine.saves_due):
            break
        time.sleep(0.01)
    assert (engine.offers_due, engine.loads_due, engine.saves_due) == ({}, {}, {})
    assert sorted(engine.free) == list(range(64))
    rig.settle()
    assert engine.counts["blocks"] > 20, "the schedule must have loaded something"
    assert rig.connector.status().fetches_in_flight == 0
