"""`kvterrace trace` as a user meets it: reports, charts, JSON, and mistakes in one line."""

import json
import re
import subprocess
import sys

import pytest
from kvterrace.kvstore import cli
from kvterrace.kvstore.placement.policies import POLICY_NAMES
from kvterrace.kvstore.sim import charts
from kvterrace.kvstore.sim.capacity import parse_capacity
from kvterrace.kvstore.sim.outcome import Speeds
from kvterrace.kvstore.sim.replay import replay
from kvterrace.kvstore.sim.report import Study
from typer.testing import CliRunner

pytestmark = pytest.mark.unit


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli.app, ["trace", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def file(tmp_path, rows_of):
    path = tmp_path / "day.jsonl"
    rows = rows_of.conversations(1, 200)
    for number, row in enumerate(rows):
        row["agent"] = ("chat", "[code]")[number % 2]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_replay_reports_tiers_and_ceilings(file):
    code, out, err = run("replay", file, "--dram", "60blocks", "--nvme", "120blocks", "--prefill-tokens-per-s", 1000)
    assert (code, err) == (0, "")
    assert "day.jsonl: 200 requests" in out
    assert "a block: 16 tokens, 2.0 MiB; an infinite cache hits" in out
    for label in ("hit tokens", "evicted blocks", "bytes written", "with hindsight", "seconds saved", "[code]"):
        assert label in out, out


def test_json_adds_up_and_is_all_that_is_printed(file):
    code, out, _ = run("replay", file, "--dram", "60blocks", "--nvme", "120blocks", "--json")
    said = json.loads(out)
    assert code == 0
    (only,) = said["runs"]
    assert sum(only["hit_tokens"].values()) + only["computed_tokens"] == said["trace"]["input_tokens"]
    assert only["hit_rate"] <= only["optimum"]["hit_rate"] <= said["infinite"]["hit_rate"]
    assert sum(agent["hit_tokens"] for agent in only["agents"].values()) == sum(only["hit_tokens"].values())
    assert "saved_s" not in only  # nobody said how fast prefill is


def test_the_block_size_turns_sizes_into_blocks(file):
    _, out, _ = run("replay", file, "--dram", "1MiB", "--block-bytes", "4KiB", "--json")
    said = json.loads(out)
    assert (said["block_bytes"], said["runs"][0]["dram_blocks"]) == (4096, 256)


def test_what_if_runs_every_size_under_every_policy(file):
    sizes = "30blocks,60blocks,120blocks"
    code, out, _ = run("what-if", file, "--dram", sizes, "--policy", ",".join(POLICY_NAMES), "--json")
    runs = json.loads(out)["runs"]
    assert code == 0
    assert [(each["dram"], each["policy"]) for each in runs] == [
        (size, policy) for size in sizes.split(",") for policy in POLICY_NAMES
    ]
    code, out, _ = run("what-if", file, "--dram", sizes, "--policy", "lru,s3fifo")
    assert all(name in out for name in ("lru", "s3fifo", "hindsight", "infinite", "120blocks")), out


@pytest.mark.parametrize("kind", ["png", "svg", "html"])
def test_charts_are_written_and_need_no_other_file(file, tmp_path, kind):
    out = tmp_path / f"curve.{kind}"
    code, _, err = run("what-if", file, "--dram", "30blocks,120blocks", "--policy", "lru,s3fifo", "--out", out)
    assert (code, err) == (0, "")
    content = out.read_bytes()
    if kind == "png":
        assert content.startswith(b"\x89PNG")
        return
    text = content.decode()
    assert "<svg" in text
    assert not re.search(r"(?:src|href)\s*=\s*[\"'](?!#)", text.replace("xlink:href", "href")), "it loads something"
    assert "url(http" not in text
    if kind == "html":
        assert "<table>" in text
        assert all(f"<th>{name}</th>" in text for name in ("lru", "s3fifo", charts.CEILING))


def test_the_terminal_chart_has_a_line_for_each_policy(trace_of, rows_of, setup_of):
    study = Study(trace_of(rows_of.conversations(1, 50)), block_tokens=16, block_bytes=4096, speeds=Speeds())
    for size in ("20blocks", "80blocks"):
        capacity = parse_capacity(size, 4096)
        study.add("lru", capacity, None, replay(study.trace, setup_of(capacity.blocks)))
        if size == "20blocks":
            assert charts.terminal_chart(study, 80) == ""
    chart = charts.terminal_chart(study, 80)
    assert all(word in chart for word in ("lru", charts.CEILING, "20blocks", "80blocks"))
    assert max(len(re.sub(r"\x1b\[[0-9;]*m", "", line)) for line in chart.splitlines()) <= 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dram", "lots"], "--dram: 'lots' is not a size"),
        (["--dram", "1KiB"], "--dram: '1KiB' has no room for a block of 2097152 bytes"),
        (["--dram", "1GiB", "--nvme", "0blocks"], "--nvme: '0blocks' has no room"),
        (["--dram", "1GiB", "--policy", "fifo"], "--policy: there is no 'fifo'; there are "),
        (["--dram", "1GiB", "--admission", "some"], "--admission: there is no 'some'; there are all"),
        (["--dram", "1GiB", "--mode", "both"], "--mode: there is no 'both'; there are inclusive, exclusive"),
        (["--dram", "1GiB", "--block-bytes", "x"], "--block-bytes: 'x' is not a size"),
        (["--dram", "1GiB", "--nvme-bytes-per-s", "fast"], "--nvme-bytes-per-s: 'fast' is not a size"),
    ],
)
def test_a_bad_flag_is_one_line_that_names_it(file, arguments, words):
    code, out, err = run("replay", file, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"kvterrace trace replay: {words}")
    assert err.count("\n") == 1


def test_a_trace_of_lengths_only_is_told_that_no_hits_can_be_simulated(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,4808,10\n")
    code, _, err = run("what-if", path, "--dram", "1GiB")
    assert code == 2
    assert "1 requests, 4,808 tokens" in err
    assert "no hits can be simulated" in err


def test_bad_lines_are_reported_with_their_numbers_and_the_rest_is_replayed(file):
    file.write_text("{oops\n" + file.read_text())
    code, out, _ = run("replay", file, "--dram", "60blocks")
    assert code == 0
    assert "1 lines were left out" in out
    assert "  line 1: not JSON" in out
    assert "200 requests" in out


def test_a_file_that_is_no_trace_is_one_line(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(range(256)) * 40)
    code, _, err = run("replay", path, "--dram", "1GiB")
    assert code == 2
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["curve.pdf", "curve", "absent/curve.png"])
def test_a_chart_that_cannot_be_written_is_refused_before_the_simulation(file, tmp_path, name):
    code, out, err = run("what-if", file, "--dram", "60blocks", "--out", tmp_path / name)
    assert (code, out) == (2, "")
    assert "--out" in err


def test_without_matplotlib_a_chart_in_a_file_says_what_to_install(file, tmp_path):
    """And everything else works: the extra is asked for only by --out."""
    program = "import sys; sys.modules['matplotlib'] = None\nfrom kvterrace.kvstore.cli import app\napp()"
    command = [sys.executable, "-c", program, "trace", "what-if", str(file), "--dram", "30blocks,60blocks"]
    plain = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert plain.returncode == 0, plain.stderr
    drawn = subprocess.run(
        [*command, "--out", str(tmp_path / "c.png")], capture_output=True, text=True, timeout=60, check=False
    )
    assert drawn.returncode == 2
    assert "pip install 'kvterrace[charts]'" in drawn.stderr
    assert drawn.stderr.count("\n") == 1
