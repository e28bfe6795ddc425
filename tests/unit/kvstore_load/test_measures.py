"""What is counted: percentiles in fixed memory, objectives, columns over time, events out of bytes."""

import random
import sys
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kvterrace.kvstore.load.outcome import Outcome, Status, Usage
from kvterrace.kvstore.load.quantiles import Quantiles
from kvterrace.kvstore.load.slo import Slo
from kvterrace.kvstore.load.sse import MAX_EVENT_BYTES, EventParser, TooLong
from kvterrace.kvstore.load.tally import KEPT_SAMPLES, MAX_NAMES, Tally
from kvterrace.kvstore.load.timeline import FIRST_WIDTH_S, MAX_COLUMNS, SERIES, Timeline

pytestmark = pytest.mark.unit


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(2e-5, 9e4), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_percentile_is_within_half_a_percent_of_the_exact_one(values, share):
    found = Quantiles()
    for value in values:
        found.add(value)
    exact = sorted(values)[max(1, -(-len(values) * int(share * 100) // 100)) - 1]
    assert found.at(share) == pytest.approx(exact, rel=0.0051)
    assert (found.max_s, found.min_s) == (max(values), min(values))
    assert found.curve()[-1][1] == 1.0


def test_percentiles_of_nothing_and_of_what_is_out_of_range():
    found = Quantiles()
    assert (found.at(0.5), found.mean_s, found.to_json()) == (0.0, 0.0, {"count": 0})
    for value in (0.0, 1e-7, 1e7):
        found.add(value)
    assert found.at(0.99) == 1e7
    assert found.at(0.1) <= 1e-5
    size = sys.getsizeof(found._counts)
    for _ in range(10_000):
        found.add(random.Random(1).random())
    assert sys.getsizeof(found._counts) == size


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text("ab :é", max_size=8), min_size=1, max_size=5), st.booleans(), st.randoms())
def test_events_are_the_same_however_the_bytes_are_cut(texts, crlf, rng):
    end = "\r\n" if crlf else "\n"
    sent = "".join(f": note{end}event: x{end}data: {text}{end}{end}" for text in texts).encode()
    parser, found = EventParser(), []
    while sent:
        size = rng.randint(1, 5)
        found += parser.feed(sent[:size])
        sent = sent[size:]
    assert found == [text.encode() for text in texts]


def test_an_event_of_several_lines_and_one_without_end():
    assert list(EventParser().feed(b"data: a\ndata:b\n\n\n")) == [b"a\nb"]


@pytest.mark.parametrize("piece", [b"x", b"data: x\n"])
def test_an_event_without_end_is_refused(piece):
    parser, piece = EventParser(), piece * (MAX_EVENT_BYTES // 4 // len(piece))
    with pytest.raises(TooLong):
        list(map(list, map(parser.feed, [piece] * 10)))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 5000), max_size=50))
def test_columns_over_time_lose_nothing_when_they_grow(times):
    line = Timeline()
    for at_s in times:
        line.add("sent", at_s)
        line.add("ended", at_s + 1)
    assert sum(line.series("sent")[1]) == len(times)
    assert all(len(line.series(name)[1]) <= MAX_COLUMNS for name in SERIES)
    width_s, few = line.series("sent", most=7)
    assert len(few) <= 7
    assert sum(few) == len(times)
    assert width_s >= FIRST_WIDTH_S
    assert not times or line.in_flight()[1][-1] == 0
    for at_s in times:
        assert line.series("sent")[1][int(at_s / line.width_s)] > 0


def outcome(due_s=0.0, sent_s=0.0, first_s=0.5, gaps=(0.1, 0.1), end_s=1.0, **more):
    return Outcome("steady", due_s, sent_s, end_s, first_s, array("d", gaps), **more)


def test_an_objective_counts_from_when_the_request_was_due():
    slo = Slo.parse("ttft=0.6, itl=0.15,gap=0.3,e2e=2")
    assert slo.broken(outcome()) == []
    assert slo.broken(outcome(due_s=-0.2)) == ["ttft"]  # it waited for us: its user did, too
    assert slo.broken(outcome(gaps=(0.35, 0.0, 0.0, 0.0))) == ["gap"]
    assert slo.broken(outcome(gaps=(0.2, 0.2))) == ["itl"]
    assert slo.broken(outcome(end_s=2.5)) == ["e2e"]
    assert slo.broken(outcome(first_s=None, gaps=(), end_s=0.7)) == ["ttft"]
    assert slo.broken(outcome(status=Status.REJECTED)) == ["ttft", "itl", "gap", "e2e"]
    assert Slo.parse("").broken(outcome(due_s=-99.0)) == []
    assert Slo.parse("").broken(outcome(status=Status.TIMEOUT)) == ["timeout"]


@pytest.mark.parametrize("text", ["ttft", "ttft=", "ttft=x", "ttft=0", "ttft=-1", "ttft=nan", "speed=1", "itl=inf"])
def test_an_objective_that_is_none_names_itself(text):
    with pytest.raises(ValueError, match=text.split("=")[0]):
        Slo.parse(text)


def test_a_tally_counts_hits_receipts_and_failures():
    tally = Tally(Slo.parse("ttft=0.55"), random.Random(0), start_s=0.0)
    told = [
        Usage(100, 3, 90, {"hbm": 10, "dram": 80, "computed": 10}, "", 0.5),
        Usage(100, 3, 10, {"hbm": 10, "dram": 0, "computed": 91}, "evicted", -0.25),  # does not sum
        Usage(100, 3, None),
    ]
    for number, usage in enumerate(told):
        tally.starts(0.0, 0.0)
        tally.ends(outcome(first_s=0.5 + 0.02 * number, usage=usage))
    tally.starts(0.0, 0.25)
    tally.ends(outcome(status=Status.TIMEOUT, detail="no end", first_s=None, gaps=(), end_s=5.0))
    tally.never_sent(3.0)
    tally.starts(0.0, 0.0)
    tally.ends(outcome(status=Status.CUT, end_s=6.0))
    assert (tally.sent, tally.ok, tally.asked, tally.good) == (5, 3, 5, 3)
    assert tally.good == 3  # the timeout, and what was never sent, met nothing
    assert (tally.tokens.cached, tally.tokens.cached_of, tally.tokens.prompt) == (100, 200, 300)
    assert (tally.tokens.receipts, tally.tokens.unequal, tally.tokens.saved_s) == (2, 1, 0.25)
    assert tally.tokens.reasons == {"evicted": 1}
    assert tally.latencies.hit_ttft_s.count == tally.latencies.miss_ttft_s.count == 1
    assert tally.latencies.late_s.max_s == 0.25
    assert tally.errors == {"no end": 1}
    assert tally.timeline.series("output_tokens")[1] != []
    assert sum(tally.timeline.series("output_tokens")[1]) == pytest.approx(9)


def test_a_tally_stays_small_however_much_happens():
    tally = Tally(Slo({}), random.Random(0), start_s=0.0)
    for number in range(KEPT_SAMPLES + 500):
        tally.starts(0.0, 0.0)
        failed = outcome(status=Status.ERROR, detail=f"error {number}", first_s=None, gaps=(), end_s=number)
        tally.ends(failed if number % 2 else Outcome(f"kind {number}", 0.0, 0.0, 1.0, 0.5))
    assert len(tally.samples) == KEPT_SAMPLES
    assert len(tally.errors) == MAX_NAMES + 1
    assert len(tally.kinds) == MAX_NAMES + 1
    assert tally.errors.total() == (KEPT_SAMPLES + 500) // 2
