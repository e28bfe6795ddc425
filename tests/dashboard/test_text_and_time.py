"""Numbers as people read them, and the history as columns."""

import pytest
from kvterrace.kvstore.dashboard import text
from kvterrace.kvstore.dashboard.timeline import COLUMNS, Timeline, Timelines
from kvterrace.kvstore.insight.types import Sample

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        (text.size(0), "0 B"),
        (text.size(1023), "1 KiB"),
        (text.size(1536), "1.50 KiB"),
        (text.size(64 << 30), "64 GiB"),
        (text.count(9_999), "9,999"),
        (text.count(12_345), "12.3 k"),
        (text.count(999_600), "1.00 M"),
        (text.share(0.0), "0 %"),
        (text.share(0.0001), "< 0.1 %"),
        (text.share(0.9999), "> 99 %"),
        (text.share(1.0), "100 %"),
        (text.seconds(0), "0 s"),
        (text.seconds(0.0123), "12.3 ms"),
        (text.seconds(59.97), "1 min"),
        (text.seconds(8040), "2 h 14 min"),
        (text.seconds(-70), "-1 min 10 s"),
        (text.ago(0.4), "now"),
        (text.ago(7300), "2 h"),
        (text.money(4.474, "USD"), "4.47 USD"),
        (text.money(0.01234, "EUR"), "0.0123 EUR"),
        (text.points(0.0712), "7.1 points"),
        (text.plural(1, "block"), "1 block"),
        (text.plural(2, "branch", "branches"), "2 branches"),
    ],
)
def test_numbers_keep_their_unit_and_no_more_digits_than_matter(said: str, wanted: str) -> None:
    assert said == wanted


def sample(time_s: float, computed: int = 100, **more: object) -> Sample:
    said = {"seconds": 1.0, "requests": 1, "tokens": {"dram": 300, "computed": computed}, "misses": {"new": computed}}
    times = {"ttft_hit_s": 0.1, "ttft_miss_s": None, "saved_s": 0.5, "tiers": {}}
    return Sample(time_s=time_s, **{**said, **times, **more})  # type: ignore[arg-type]


def test_what_a_window_sums_to_is_what_came_within_it() -> None:
    line = Timeline(900.0)
    line.bring(10_000.0, [sample(10_000.0 - i) for i in range(1000)][::-1])
    inside = line.requests()
    assert 890 <= inside <= 900
    assert line.tokens() == {"dram": 300 * inside, "computed": 100 * inside}
    assert line.misses() == {"new": 100 * inside}


def test_samples_one_by_one_give_the_same_columns_as_all_at_once() -> None:
    samples = [sample(5_000.0 + i, computed=i, ttft_miss_s=float(i) if i % 7 == 0 else None) for i in range(400)]
    steadily, at_once = Timeline(300.0), Timeline(300.0)
    for each in samples:
        steadily.bring(each.time_s, [each])
    at_once.bring(samples[-1].time_s, samples)
    assert [each.tokens for each in steadily.columns] == [each.tokens for each in at_once.columns]
    assert [each.ttft_miss_s for each in steadily.columns] == [each.ttft_miss_s for each in at_once.columns]
    assert list(steadily.rates(5_399.0)) == list(at_once.rates(5_399.0))


def test_columns_stay_in_place_while_time_goes_on() -> None:
    line = Timeline(900.0)
    line.bring(9_001.0, [sample(8_000.5 + i) for i in range(1000)])
    before, start = list(line.columns), line.start_s
    line.bring(9_011.0, [])
    assert line.start_s == start + line.width_s
    assert list(line.columns)[:-1] == before[1:]
    assert not line.columns[-1].tokens


@pytest.mark.parametrize("then", [9_000.0 - 7_200.0, 9_000.0 + 7_200.0])
def test_a_clock_that_jumps_leaves_no_old_columns(then: float) -> None:
    line = Timeline(300.0)
    line.bring(9_000.0, [sample(8_990.0)])
    line.bring(then, [sample(then)])
    assert line.requests() == 1
    assert len(line.columns) == COLUMNS


def test_the_column_that_has_only_begun_is_divided_by_what_has_passed_of_it() -> None:
    line = Timeline(900.0)  # columns of 10 s
    line.bring(9_002.0, [sample(9_001.0), sample(9_002.0)])
    assert list(line.rates(9_002.0))[-1] == {"dram": 300.0, "computed": 100.0}


def test_timelines_take_each_sample_once() -> None:
    lines, samples = Timelines(), [sample(9_000.0), sample(9_001.0)]
    for now_s in (9_001.0, 9_002.0):
        lines.bring(now_s, [each for each in samples if each.time_s > lines.until_s])
    assert [lines[window].requests() for window in ("5 min", "15 min", "6 hours")] == [2, 2, 2]
