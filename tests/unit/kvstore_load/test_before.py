"""An earlier report beside a new one: what changed, what cannot be compared, and what is no report."""

import json
import random
from array import array

import pytest
from kvterrace.kvstore.errors import KvterraceError
from kvterrace.kvstore.load.before import read_before
from kvterrace.kvstore.load.calibrate import Calibration
from kvterrace.kvstore.load.outcome import Outcome, Usage
from kvterrace.kvstore.load.page import page
from kvterrace.kvstore.load.report import Report, notes
from kvterrace.kvstore.load.slo import Slo
from kvterrace.kvstore.load.tables import change_rows
from kvterrace.kvstore.load.tally import Tally

pytestmark = pytest.mark.unit


def report(ttft_s, *, rate=4.0, before=None, name="m<odel>"):
    tally = Tally(Slo.parse("ttft=1"), random.Random(0), 0.0)
    for _ in range(4):
        tally.starts(0.0, 0.0)
        usage = Usage(100, 3, 50)
        tally.ends(Outcome("steady", 0.0, 0.0, 4.0, ttft_s, array("d", [0.1, 0.1]), usage=usage))
    return Report(
        "http://h/v1", name, "steady", {"rate": rate, "seed": 1}, Calibration(1.0, 0, told=True), tally.slo,
        {"load": tally}, "2026-11-30 12:00:00+00:00", before=before,
    )  # fmt: skip


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "before.json"
    path.write_text(json.dumps(report(2.0).to_json()))
    return path


def test_each_figure_is_told_with_its_ratio(saved):
    now = report(0.5, before=read_before(saved))
    rows = {row[0]: row[1:] for row in change_rows(now)}
    assert rows["TTFT from when due, p50"] == ["2 s", "500 ms", "0.25 × better"]
    assert rows["share that met the SLO"] == ["0", "1", ""]
    assert rows["requests/s, ended well"] == ["1", "1", "1.00 ×"]
    assert rows["TPOT, p50"] == ["100 ms", "100 ms", "1.00 ×"]
    assert "0.25 × better" in page(now)
    assert now.to_json()["against"]["changes"]["TTFT from when due, p95"]["ratio"] == 0.25


def test_what_was_asked_for_differently_is_a_note(saved):
    said = list(notes(report(0.5, rate=8.0, before=read_before(saved))))
    assert said[0] == "Not asked for the same as before: rate 4.0, now 8.0."
    assert not any("before" in note for note in notes(report(0.5, before=read_before(saved))))


@pytest.mark.parametrize("content", ["", "[1]", "{}", '{"schema": 1}', '{"schema": 2, "phases": {"load": {}}}'])
def test_what_is_no_report_is_refused_in_one_line(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(KvterraceError, match=r"--against: .*x\.json is (not JSON|no report)"):
        read_before(path)
    with pytest.raises(KvterraceError, match=r"--against: .* cannot be read"):
        read_before(tmp_path / "none.json")


def test_names_from_elsewhere_are_text_on_the_page():
    html = page(report(0.5))
    assert "m&lt;odel&gt;" in html
    assert "<odel>" not in html
