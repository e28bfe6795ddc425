"""Requests that wait far back are prefetched within the store: the next ones only, each once, and not for nothing."""

import pytest

pytestmark = pytest.mark.unit


@pytest.fixture
def busy(rig, store, prompt):
    """(engine, connector): one request runs, two are prepared behind it, prefetches for four more."""

    def build(**config):
        connector = store()
        config = {"max_running": 1, "kv_fetch_ahead": 2, "kv_prefetch_ahead": 4} | config
        engine = rig(connector=connector, **config)
        engine.submit(prompt(100, 5), max_tokens=40, name="first")
        engine.step(3)
        return engine, connector

    return build


def prefetched(connector):
    return [entry[1].split("/")[0] for entry in connector.log if entry[0] == "prefetch"]


def test_the_next_in_line_are_prefetched_once_and_no_more_than_so_many(busy, prompt):
    engine, connector = busy()
    for i in range(9):
        engine.submit(prompt(i, 13), name=f"w{i}")
    engine.step(8)
    assert prefetched(connector) == ["w2", "w3", "w4", "w5"]
    engine.run()
    assert prefetched(connector) == [f"w{i}" for i in range(2, 9)]
    assert not connector.prefetches
    engine.all_free()


def test_it_names_the_full_blocks_and_how_many_of_them_hbm_has(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector, max_running=1, kv_fetch_ahead=1)
    head = prompt(1, 8)
    engine.one(head + prompt(2, 3), max_tokens=1)
    engine.submit(prompt(3, 5), max_tokens=40)
    engine.step(3)
    engine.submit(prompt(4, 13))
    deep = head + prompt(5, 9)  # 17 tokens: four full blocks and the one that is always computed
    engine.submit(deep, name="deep")
    engine.submit(head + prompt(2, 1), name="known")  # 9 tokens: both blocks are in HBM
    engine.step(2)
    packed = b"".join(token.to_bytes(4, "little") for token in deep[:16])
    assert list(connector.prefetches.values()) == [(packed, 2)]
    engine.run()


def test_interactive_comes_before_batch(busy, prompt):
    engine, connector = busy()
    for i in range(6):
        engine.submit(prompt(i, 13), name=f"b{i}", priority="batch")
    for i in range(4):
        engine.submit(prompt(20 + i, 13), name=f"i{i}")
    engine.step(2)
    assert prefetched(connector) == ["i2", "i3", "b0", "b1"]
    engine.run()


def test_a_prefetch_ends_before_the_requests_own_fetch(busy, prompt):
    """The fake asserts it at each fetch."""
    engine, connector = busy()
    for i in range(4):
        engine.submit(prompt(i, 13), name=f"w{i}")
    engine.step(2)
    assert len(connector.prefetches) == 2
    engine.core.cancel("first")
    engine.step(3)
    assert len(connector.prefetches) == 1
    engine.run()
    assert not connector.prefetches


@pytest.mark.parametrize("end", ["cancel", "timeout", "fail", "close"])
def test_who_leaves_the_queue_leaves_no_prefetch(busy, prompt, end):
    engine, connector = busy(max_queue_wait_s=5.0)
    for i in range(5):
        engine.submit(prompt(i, 13), name=f"w{i}")
    engine.step(2)
    assert len(connector.prefetches) == 3
    if end == "cancel":
        for i in range(5):
            engine.core.cancel(f"w{i}")
    elif end == "timeout":
        engine.clock.now += 6
        engine.step()
    elif end == "fail":
        engine.core.fail_all("broken")
    else:
        engine.core.close()
    engine.core.check()
    assert not connector.prefetches


def test_a_refused_prefetch_is_tried_again_later(busy, prompt):
    engine, connector = busy()
    connector.max_prefetches = 0
    for i in range(4):
        engine.submit(prompt(i, 13), name=f"w{i}")
    engine.step(10)
    assert connector.count("prefetch") == 1  # not at each step
    connector.max_prefetches = 9
    engine.clock.now += 1
    engine.step()
    assert sorted(key.split("/")[0] for key in connector.prefetches) == ["w2", "w3"]
    engine.run()


def test_other_samples_of_a_waiting_request_are_not_prefetched(busy, prompt):
    engine, connector = busy()
    for i in range(2):
        engine.submit(prompt(i, 13), name=f"w{i}")
    engine.submit(prompt(7, 13), name="many", n=4)
    engine.step(2)
    assert prefetched(connector) == ["many"]
    engine.run()


def test_none_are_foreseen_when_told_so(busy, prompt):
    engine, connector = busy(kv_prefetch_ahead=0)
    for i in range(6):
        engine.submit(prompt(i, 13), name=f"w{i}")
    engine.run()
    assert connector.count("prefetch") == 0


def test_a_connector_that_breaks_while_prefetching_is_done_without(busy, prompt):
    engine, connector = busy()

    def broken(*_):
        raise RuntimeError("broken")

    connector.prefetch = broken
    seen = [engine.submit(prompt(i, 13), name=f"w{i}") for i in range(6)]
    engine.run()
    assert all(s.reasons == ["length"] for s in seen)
    engine.all_free()
