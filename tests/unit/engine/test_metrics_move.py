"""Each metric of the engine moves under what it is about. A family that nobody here moves fails the last test."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
from kvterrace.connector.base import ConnectorStatus, LoadDone
from kvterrace.engine.server.backend import Backend
from kvterrace.engine.server.metrics import EngineCollector, HttpMetrics
from prometheus_client import CollectorRegistry

pytestmark = pytest.mark.unit

ENGINE = "kvterrace_engine_"
REQUEST = {
    "kvterrace_prompt_tokens",
    *(
        ENGINE + name
        for name in (
            "requests", "finished", "generated_tokens", "steps", "prefill_tokens", "prefill_seconds", "decode_tokens",
            "decode_seconds", "ttft_seconds", "itl_seconds", "tpot_seconds", "e2e_seconds", "queue_wait_seconds",
            "cache_wait_seconds", "misses", "missed_tokens", "saved_blocks", "slo_requests", "slo_tokens", "pages",
        )
    ),
}  # fmt: skip

#: Moved in the tests of what they belong to, which have a thread, a store or HTTP.
ELSEWHERE = {
    ENGINE + "queued": "engine/test_loop.py::test_the_queue_is_bounded_and_says_when_to_come_back",
    ENGINE + "queued_tokens": "engine/test_loop.py::test_the_queue_is_bounded_and_says_when_to_come_back",
    ENGINE + "rejected": "engine/test_loop.py::test_the_queue_is_bounded_and_says_when_to_come_back",
    ENGINE + "ready": "engine_server/test_operator_routes.py::test_not_ready_is_a_metric",
    ENGINE + "http_responses": "engine_server/test_operator_routes.py::test_responses_are_counted_by_route",
    ENGINE + "http_disconnects": "engine_server/test_throttle_and_trouble.py::disconnects_total",
    **{
        f"{ENGINE}connector_{field.name}": "connector/test_counts.py::test_each_number_of_a_connector_moves"
        for field in dataclasses.fields(ConnectorStatus)
        if field.name != "kind"
    },
}
moved_here: set[str] = set()


class Scrape:
    """The collector over a core that a test drives."""

    def __init__(self, engine):
        backend = Backend("m", "1")
        shim = SimpleNamespace(alive=True, stats=engine.core.snapshot, connector=engine.connector)
        backend.ready(SimpleNamespace(), shim)
        self.registry = CollectorRegistry()
        HttpMetrics(self.registry)
        self.registry.register(EngineCollector(backend))

    def __call__(self):
        """Each family's samples."""
        return {
            family.name: {
                (sample.name, tuple(sorted(sample.labels.items()))): sample.value
                for sample in family.samples
                if not sample.name.endswith("_created")
            }
            for family in self.registry.collect()
        }


@pytest.fixture
def moves():
    """moves(engine, families, action): they all change by it."""

    def check(engine, families, action):
        scrape = Scrape(engine)
        before = scrape()
        action()
        after = scrape()
        still = {name for name in families if before[name] == after[name]}
        assert not still, f"not moved: {still}"
        moved_here.update(families)

    return check


@pytest.fixture
def busy(rig, store, prompt):
    """(engine, connector) whose model takes time, with an objective."""
    connector = store()
    engine = rig(connector=connector, pages=24, slo_ttft_s=1.0)
    engine.model.token_s = 0.01
    return engine, connector


def test_a_request_moves_what_counts_requests(busy, prompt, moves):
    engine, _ = busy
    moves(engine, REQUEST, lambda: engine.one(prompt(1, 33), max_tokens=5))


def test_time_won_and_lost_by_the_store(busy, prompt, moves):
    engine, connector = busy
    engine.one(prompt(1, 33))
    engine.core.clear_hbm()
    connector.block_s = 0.5
    moves(engine, {ENGINE + "saved_seconds"}, lambda: engine.one(prompt(1, 33)))

    def wait_in_vain():
        connector.withheld = {"offer"}
        engine.submit(prompt(2, 33))
        engine.step(2)
        engine.clock.now += 0.2
        connector.release()
        engine.run()

    moves(engine, {ENGINE + "lost_seconds"}, wait_in_vain)


def test_what_runs_and_waits(busy, prompt, moves):
    engine, _ = busy

    def begin():
        engine.submit(prompt(1, 33), max_tokens=60)
        engine.submit(prompt(2, 60), max_tokens=30)
        engine.step(4)

    moves(engine, {ENGINE + "running", ENGINE + "waiting", ENGINE + "admitted_tokens"}, begin)
    engine.run()


def test_the_pools_size_is_told(rig, moves):
    small, large = rig(pages=8), rig(pages=16)
    for name in ("pages_capacity", "capacity_tokens"):
        before, after = Scrape(small)()[ENGINE + name], Scrape(large)()[ENGINE + name]
        assert list(after.values()) == [2 * value for value in before.values()]
        moved_here.add(ENGINE + name)


def test_trouble(busy, prompt, moves):
    engine, connector = busy

    def fail():
        engine.model.fail_next = True
        engine.one(prompt(1, 9))

    moves(engine, {ENGINE + "step_errors"}, fail)

    def crowd():
        for seed in range(4):
            engine.submit(prompt(seed, 17), max_tokens=20)
        engine.run()

    moves(engine, {ENGINE + "preemptions"}, crowd)

    def late():
        connector.withheld = {"offer"}
        engine.submit(prompt(11, 33))
        engine.step(2)
        engine.clock.now += 60.0
        engine.core.step()
        connector.release()
        engine.run()

    moves(engine, {ENGINE + "late_transfers"}, late)

    def stray():
        connector._push("load", lambda: LoadDone("nobody", 0, {}, ""), "nobody")
        engine.step()

    moves(engine, {ENGINE + "stray_events"}, stray)


def test_saves_beyond_half_of_the_pool_are_dropped(busy, prompt, moves):
    engine, connector = busy

    def stall():
        connector.withheld = {"save"}
        for seed in range(3):
            engine.one(prompt(20 + seed, 25), max_tokens=1)

    moves(engine, {ENGINE + "dropped_saves"}, stall)
    connector.release()
    engine.run()


def test_no_metric_is_moved_by_nobody(busy):
    """Last in this file: it looks at what the tests above have moved."""
    if not moved_here >= REQUEST:
        pytest.skip("the tests above did not all run")
    engine, _ = busy
    assert set(Scrape(engine)()) - moved_here == set(ELSEWHERE)
    for place in set(ELSEWHERE.values()):
        file, _, name = place.partition("::")
        assert name in (Path(__file__).parents[1] / file).read_text(), f"{place} is not there"
