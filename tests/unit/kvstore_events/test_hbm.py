"""What engines say they have: believed for their own session, bounded, and gone with it."""

import random

import numpy as np
import pytest
from kvterrace.kvstore.events import hbm as module
from kvterrace.kvstore.events.hbm_frames import pack_hbm, unpack_hbm
from kvterrace.kvstore.service.frames import FrameError
from kvterrace.kvstore.types import HbmChange
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit


def numbers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def held(bench, session, tokens) -> list[tuple[str, int]]:
    return [(engine.name, count) for engine, count in bench.store.holdings.hbm.held(session.fingerprint, tokens)]


@pytest.mark.parametrize("seed", range(4))
async def test_a_view_is_what_the_engine_has_whatever_it_gains_and_loses(events_bench, make_engine, prompt, seed):
    rng = random.Random(seed)
    b = events_bench(8)
    engine, hbm = make_engine(b.lower.session), b.store.holdings.hbm
    prompts = [prompt(name, 6) + prompt(90 + tail, 4) for name in range(3) for tail in range(2)]
    engine.say_all()
    for _ in range(80):
        what = rng.random()
        if what < 0.5:
            engine.compute(rng.choice(prompts)[: 16 * rng.randint(1, 10)])
        elif what < 0.9:
            engine.drop(rng, rng.randint(1, 20))
        else:
            engine.say_all()
        hbm.check()
        for tokens in prompts:
            most = max((len(prefix) // 4 for prefix in engine.blocks if tokens.startswith(prefix)), default=0)
            assert held(b, engine.session, tokens) == [("test", most)]
    assert hbm.dropped == 0


async def test_it_ends_with_its_session(events_bench, make_engine, prompt):
    b = events_bench(8)
    again = b.store.open_session(b.lower.session.namespace, client="another")
    engines = [make_engine(each) for each in (b.lower.session, again)]
    for blocks, engine in zip((2, 5), engines, strict=True):
        engine.compute(prompt(1, blocks))
    assert held(b, again, prompt(1, 9)) == [("test", 8), ("another", 20)]
    again.close()
    assert held(b, again, prompt(1, 9)) == [("test", 8)]
    assert b.store.holdings.hbm.blocks == 2


@pytest.mark.parametrize(
    "change",
    [
        HbmChange(numbers(1, 2), bytes(16)),
        HbmChange(numbers(1, 1), bytes(32)),
        HbmChange(numbers(1 << 24), bytes(16)),
        HbmChange(numbers(), bytes(16)),
    ],
)
async def test_what_makes_no_sense_is_refused_and_changes_nothing(events_bench, make_engine, prompt, change):
    b = events_bench(8)
    engine = make_engine(b.lower.session)
    engine.compute(prompt(1, 3))
    with pytest.raises(ValueError):
        engine.tell([change])
    b.store.holdings.hbm.check()
    assert held(b, engine.session, prompt(1, 3)) == [("test", 12)]


async def test_more_than_allowed_and_what_hangs_below_it_is_left_out_and_counted(
    events_bench, make_engine, prompt, monkeypatch
):
    monkeypatch.setattr(module, "MAX_BLOCKS", 4)
    b = events_bench(8)
    engine, hbm = make_engine(b.lower.session), b.store.holdings.hbm
    engine.tell([HbmChange(numbers(0, 1, 2), prompt(1, 3))])
    engine.tell([HbmChange(numbers(3, 4), prompt(2, 2)), HbmChange(numbers(5), prompt(3, 1), 4)])
    assert (hbm.blocks, hbm.dropped) == (3, 3)
    engine.tell([HbmChange(numbers(3, 4)), HbmChange(numbers(2)), HbmChange(numbers(3), prompt(2, 1))])
    assert held(b, engine.session, prompt(2, 1)) == [("test", 4)]
    hbm.check()


async def test_a_number_that_is_given_anew_means_the_new_block(events_bench, make_engine, prompt):
    b = events_bench(8)
    engine = make_engine(b.lower.session)
    engine.tell([HbmChange(numbers(0, 1), prompt(1, 2))])
    engine.tell([HbmChange(numbers(0), prompt(2, 1))])
    b.store.holdings.hbm.check()
    assert held(b, engine.session, prompt(1, 2)) == [("test", 0)]
    assert held(b, engine.session, prompt(2, 2)) == [("test", 4)]


def test_reports_travel_and_broken_ones_name_their_field(prompt):
    changes = [HbmChange(numbers(7, 8), prompt(1, 2), 3), HbmChange(numbers(1))]
    report = pb.HbmReport.FromString(pack_hbm(changes, whole=True).SerializeToString())
    back = unpack_hbm(report)
    assert report.whole
    assert [(each.numbers.tolist(), each.tokens, each.parent) for each in back] == [
        ([7, 8], prompt(1, 2), 3),
        ([1], b"", -1),
    ]
    for field, broken in (("numbers", pb.HbmChange(numbers=b"123")), ("tokens", pb.HbmChange(tokens=b"12345"))):
        with pytest.raises(FrameError) as caught:
            unpack_hbm(pb.HbmReport(changes=[broken]))
        assert caught.value.field == field
