"""The report and its checksum."""

import json

import pytest
from kvterrace.kvstore.verify.report import Check, Outcome, Report, digest_of

pytestmark = pytest.mark.unit

CHECKS = [
    Check("store: a", Outcome.PASS, "4 blocks | of 8", 0.5),
    Check("store: b", Outcome.FAIL, "one\nwrong", 0.25),
    Check("store: c", Outcome.SKIP, "why", 0.0),
]


def test_a_changed_report_has_another_checksum() -> None:
    said = json.loads(json.dumps(Report(CHECKS, {"host": "here"}, 1.75e9).as_json()))
    assert said["sha256"] == digest_of(said)
    assert (said["verdict"], said["summary"]) == ("fail", "1 passed, 1 failed, 1 skipped")
    said["checks"][1]["outcome"] = "pass"
    assert said["sha256"] != digest_of(said)


def test_markdown_has_a_row_a_check_and_the_same_checksum() -> None:
    report = Report(CHECKS, {"host": "here"}, 1.75e9)
    text = report.as_markdown()
    assert text.startswith("# kvterrace verify\n\nFAILED: 1 passed, 1 failed, 1 skipped. 2025-06-15 15:06:40 UTC.")
    assert "| store: a | pass | 4 blocks \\| of 8 | 0.50 |" in text
    assert "| store: b | fail | one wrong | 0.25 |" in text
    assert report.digest() in text


def test_what_was_skipped_is_no_failure_and_no_pass() -> None:
    report = Report(CHECKS[2:], {})
    assert not report.failed
    assert report.verdict == "0 passed, 0 failed, 1 skipped"
