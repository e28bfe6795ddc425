"""The demo's verdict: identical outputs or a failing exit, and a machine line that scripts can read."""

import json
from pathlib import Path

import pytest
from kvterrace.engine.demo.client import Answer
from kvterrace.engine.demo.processes import Child, DemoError
from kvterrace.engine.demo.report import Stage, machine_line, outputs_identical
from kvterrace.engine.demo.run import DOCUMENT_CHARACTERS, shared_prefix

pytestmark = pytest.mark.unit


def stage(*texts: str, ttft_s: float = 1.0) -> Stage:
    tiers = {"hbm": 0, "dram": 96, "nvme": 0, "peer": 0, "computed": 4}
    return Stage("t", "w", tuple(Answer(text, ttft_s, 100, 96, tiers, "") for text in texts))


def test_one_differing_answer_in_any_stage_is_noticed() -> None:
    same = [stage("yes", "no") for _ in range(5)]
    assert outputs_identical(same)
    assert not outputs_identical([*same[:4], stage("yes", "No")])


def test_empty_answers_never_count_as_identical() -> None:
    assert not outputs_identical([stage("") for _ in range(5)])


def test_machine_line_is_json_with_the_medians() -> None:
    stages = [stage("a", ttft_s=ttft_s) for ttft_s in (5.0, 0.1, 0.2, 0.3, 0.4, 0.5)]
    word, _, payload = machine_line(stages).partition(" ")
    figures = json.loads(payload)
    assert word == "DEMO"
    assert (figures["cold_ttft_s"], figures["other_replica_ttft_s"], figures["nvme_ttft_s"]) == (5.0, 0.3, 0.5)
    assert (figures["cached_tokens"], figures["prompt_tokens"], figures["outputs_identical"]) == (96, 100, True)


def test_documents_that_are_missing_or_short_are_named(tmp_path: Path) -> None:
    with pytest.raises(DemoError, match=r"no such file: .*absent\.md"):
        shared_prefix((tmp_path / "absent.md",))
    short = tmp_path / "short.md"
    short.write_text("a few words")
    with pytest.raises(DemoError, match=str(DOCUMENT_CHARACTERS)):
        shared_prefix((short,))


def test_a_child_that_dies_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    child = Child("sidecar", ["serve", "--no-such-flag"], tmp_path / "log")
    child.start()
    with pytest.raises(DemoError, match=r"(?s)sidecar ended before it was ready:.*no-such-flag"):
        child.wait_ready(lambda: False, timeout_s=30)
