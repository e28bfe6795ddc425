"""What the engine tells of its own cache is what it has: whoever collects the reports holds the pool's index."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
from kvterrace.engine import changes as module
from kvterrace.kvstore.events.hbm import Engine, Hbm

pytestmark = pytest.mark.unit

EVERY_S = 0.1


@dataclass
class Space:
    fingerprint: bytes = bytes(32)
    block_tokens: int = 4


class Listener:
    """Collects a FakeConnector's reports as the store does."""

    def __init__(self, connector) -> None:
        self.hbm, self._connector, self.wholes, self.empty = Hbm(), connector, 0, 0

    def take(self) -> None:
        for changes, whole in self._connector.hbm_reports:
            self.wholes += whole
            self.empty += not changes
            self.hbm.report(Engine(1, "e"), Space(), "sha256", changes, whole=whole)
            self.hbm.check()
        self._connector.hbm_reports.clear()

    def forget(self) -> None:
        """Another session: it knows nothing."""
        self.hbm.end(1)
        self._connector.takes_changes = False

    def blocks(self) -> set[tuple[bytes, int]]:
        """Prefixes, and the engine's numbers for them."""
        view = self.hbm._views[1]
        return {(view.index.tokens_to(block), int(view.index.values([block])[0])) for block in view.index.iterate()}


def pool_blocks(engine) -> set[tuple[bytes, int]]:
    index = engine.pool.index
    return {(index.tokens_to(block), block) for block in index.iterate()}


@pytest.fixture
def told(rig, store):
    def make(**options):
        connector = store()
        engine = rig(connector=connector, **options)
        return engine, Listener(connector)

    return make


@pytest.mark.parametrize("seed", range(3))
def test_reports_make_up_the_pool_whatever_is_shared_evicted_and_lost(told, prompt, seed, monkeypatch):
    rng = random.Random(seed)
    monkeypatch.setattr(module.ChangeLog.__init__, "__defaults__", (rng.choice([6, 100_000]),))
    engine, listener = told(pages=24)
    for _ in range(25):
        if rng.random() < 0.1:
            listener.forget()
        if rng.random() < 0.1:
            engine.core.clear_hbm()
        shared = prompt(rng.randrange(3), 16)
        engine.one(shared[: rng.randint(1, 16)] + prompt(rng.randrange(9), rng.randint(0, 20)), max_tokens=6)
        if rng.random() < 0.5:
            engine.clock.now += rng.choice([0.01, EVERY_S, 7.0])
            engine.core.step()
            listener.take()
    engine.clock.now += 10
    engine.core.step()
    listener.take()
    assert listener.blocks() == pool_blocks(engine)
    assert listener.hbm.dropped == 0


def test_the_first_report_is_whole_and_the_next_tell_what_changed(told, prompt):
    engine, listener = told(pages=64)
    engine.one(prompt(1, 20))
    engine.clock.now += EVERY_S
    engine.core.step()
    reports = list(engine.connector.hbm_reports)
    assert [whole for _, whole in reports] == [True, False]
    listener.take()
    engine.clock.now += EVERY_S
    engine.one(prompt(2, 20))
    engine.clock.now += EVERY_S
    engine.core.step()
    said = [change for changes, _ in engine.connector.hbm_reports for change in changes]
    assert {change.parent for change in said if change.tokens} >= {-1}
    listener.take()
    assert listener.blocks() == pool_blocks(engine)


def test_what_comes_together_is_said_together_and_nothing_is_said_in_between(told, prompt):
    engine, listener = told(pages=64)
    engine.core.step()
    listener.take()
    engine.clock.now += EVERY_S
    for number in range(10):
        engine.one(prompt(number, 9))
    assert len(engine.connector.hbm_reports) <= 1
    assert engine.core.next_deadline_s() <= engine.clock.now + EVERY_S, "it wakes up to say the rest"
    engine.clock.now += EVERY_S
    engine.core.step()
    listener.take()
    assert listener.blocks() == pool_blocks(engine)


def test_another_store_is_noticed_by_an_idle_engine(told, prompt):
    engine, listener = told(pages=64)
    engine.one(prompt(1, 20))
    for _ in range(2):
        engine.clock.now += 1
        engine.core.step()
    listener.take()
    listener.forget()
    wakes_at = engine.core.next_deadline_s()
    assert wakes_at <= engine.clock.now + module.IDLE_S
    engine.clock.now = wakes_at
    engine.core.step()
    listener.take()
    assert listener.blocks() == pool_blocks(engine)
    assert listener.wholes == 2


def test_an_engine_without_a_store_notes_nothing(rig, prompt):
    engine = rig(connector=None, pages=64)
    engine.one(prompt(1, 20))
    assert engine.pool.log is None
    assert engine.core.next_deadline_s() is None


def test_a_log_that_grows_too_long_is_dropped_and_says_so():
    log = module.ChangeLog(max_blocks=5)
    log.came(np.arange(4, dtype=np.int32), 1, bytes(64), 16)
    assert [(each.numbers.tolist(), len(each.tokens), each.parent) for each in log.take()] == [([1, 2, 3], 48, 0)]
    log.left(np.arange(6, dtype=np.int32))
    assert len(log) > 0
    assert not log.complete
    assert log.take() == []
    assert log.complete
