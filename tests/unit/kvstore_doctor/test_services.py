"""What doctor says of configurations, sockets, ports, certificates and of what sidecars and engines tell."""

import contextlib
import importlib.util
import json
import socket
import sys
import time
from pathlib import Path

import pytest
from kvterrace.kvstore import cli
from kvterrace.kvstore.doctor.finding import Finding, Level
from kvterrace.kvstore.doctor.services import _health, _sharing, clock_skew, look_at_engine, look_at_valkey
from kvterrace.kvstore.doctor.setup import certificate, look_at_port, look_at_socket
from kvterrace.kvstore.engine_http import EngineHttp
from kvterrace.proto import kv_pb2 as pb
from typer.testing import CliRunner

pytestmark = pytest.mark.unit


def _load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TESTS = Path(__file__).parents[2]
certificates = _load("doctor_certificates", TESTS / "certificates.py")
fakes = _load("doctor_fake_engine", TESTS / "unit" / "kvstore_verify" / "fake_engine.py")


def run(*arguments: object) -> tuple[int, dict[str, dict[str, str]], str]:
    result = CliRunner().invoke(cli.app, ["doctor", *map(str, arguments), "--json"])
    rows = json.loads(result.stdout)["findings"] if result.stdout else []
    return result.exit_code, {row["what"]: row for row in rows}, result.stderr


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user without a sidecar, and without variables."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for name in ("KVTERRACE_DRAM", "KVTERRACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_machine_without_anything_is_examined_and_fails_nothing(unset: Path) -> None:
    code, found, _ = run("--nvme", unset / "disk")
    assert code == 0, found
    assert {"python", "memory", "open files", f"nvme {unset}/disk", f"socket {unset}/kvterrace.sock"} < set(found)
    assert found[f"sidecar unix:{unset}/kvterrace.sock"]["level"] == "warn"
    assert all(bool(row["do"]) for row in found.values() if row["level"] != "ok")


def test_a_configuration_is_read_as_the_start_would_read_it(unset: Path) -> None:
    file = unset / "serve.toml"
    file.write_text('dram = "64MiB"\nnvmee = ["/x:1GiB"]\n')
    code, found, _ = run("--config", file)
    assert code == 1
    assert "unknown key" in found[f"configuration {file}"]["said"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(
            f'dram = "64MiB"\nnvme = ["{unset}/kv:100MiB"]\nuds = "{unset}/own.sock"\nlisten = "127.0.0.1:{port}"\n'
            'http = "127.0.0.1:0"\n'
        )
        code, found, _ = run("--config", file)
    assert code == 1  # the disk's size
    assert found[f"configuration {file}"]["level"] == "ok"
    assert "DRAM tier takes 64.0 MiB" in found["memory"]["said"]
    assert found[f"nvme {unset}/kv size"]["level"] == "fail"
    assert "somebody listens there" in found[f"--listen 127.0.0.1:{port}"]["said"]
    assert "the system chooses" in found["--http 127.0.0.1:0"]["said"]
    assert f"socket {unset}/own.sock" in found


def test_a_variable_that_is_wrong_is_found(unset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVTERRACE_DRAM", "lots")
    code, found, _ = run()
    assert code == 1
    assert "KVTERRACE_DRAM: 'lots' is not a size" in found["configuration"]["said"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--address", "nowhere"], "kvterrace doctor: --address: 'nowhere' is not HOST:PORT"),
        (["--engine", "nowhere"], "kvterrace doctor: --engine: 'nowhere' is not the address of an engine"),
        (["--api-key-file", "/absent"], "kvterrace doctor: --api-key-file: /absent cannot be read"),
        (["--engine-ca", "/absent"], "kvterrace doctor: --engine-ca: /absent cannot be used"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(arguments: list[str], words: str, unset: Path) -> None:
    code, _, err = run(*arguments)
    assert code == 2
    assert err.startswith(words)
    assert err.count("\n") == 1


def test_a_path_that_makes_no_sense_is_a_finding(unset: Path) -> None:
    code, found, _ = run("--nvme", "relative", "--nvme", "/x:lots")
    assert code == 1
    assert found["nvme relative"]["said"] == "is no absolute path"
    assert "'lots' is not a size" in found["nvme /x:lots"]["said"]


def test_sockets_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "kv.sock"
    assert look_at_socket(path).level is Level.OK
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        dead = look_at_socket(path)
        assert (dead.level, "nobody answers" in dead.said) == (Level.WARN, True)
        server.listen()
        assert look_at_socket(path).said.endswith("somebody answers")
    path.unlink()
    path.touch()
    assert look_at_socket(path).said == "exists and is not a socket"
    path.unlink()
    tmp_path.chmod(0o777)
    assert "others may write" in look_at_socket(path).said
    tmp_path.chmod(0o700)


def test_ports_are_told_apart() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert "somebody listens" in look_at_port("--http", f"127.0.0.1:{port}").said
    assert look_at_port("--http", f"127.0.0.1:{port}").said == "free"
    assert look_at_port("--http", "192.0.2.1:9").level is Level.FAIL  # of nobody's machine


def test_a_certificate_is_told_before_it_ends(tmp_path: Path) -> None:
    path, _ = certificates.Authority(tmp_path).issue("node")
    ends = certificate("--tls-cert", path, time.time())
    assert ends.level is Level.WARN  # it holds for a day or two
    assert "valid until" in ends.said
    assert certificate("--tls-cert", path, time.time() - 1e9).said == "is not valid yet"
    assert certificate("--tls-cert", path, time.time() + 1e9).level is Level.FAIL
    (tmp_path / "no.pem").write_text("no")
    assert certificate("--tls-cert", tmp_path / "no.pem", 0.0).level is Level.FAIL


@pytest.mark.parametrize(
    ("skew_s", "level"), [(0.5, Level.OK), (-0.9, Level.OK), (2.0, Level.WARN), (-60.0, Level.FAIL), (1.2, Level.OK)]
)
def test_clocks_are_compared_within_what_the_call_took(skew_s: float, level: Level) -> None:
    assert clock_skew("clock", skew_s, 0.3).level is level


def levels(findings) -> dict[str, Level]:
    return {each.what: each.level for each in findings}


def test_what_a_sidecar_tells_of_itself_is_judged() -> None:
    ill = pb.StatusReply(
        tiers=[pb.TierStatus(name="nvme", devices=[pb.DeviceStatus(path="/d", state="out of use: EIO", direct=True)])],
        counters=pb.Counters(checksum_failures=3, committed_blocks=10, acquires=500),
        cluster=pb.ClusterStatus(
            name="c",
            last_error="refused",
            members=[pb.MemberStatus(node="a", package_version="1"), pb.MemberStatus(node="b", state="silent")],
        ),
    )
    assert levels(_health(ill)) == {
        "nvme /d state": Level.FAIL,
        "checksums": Level.WARN,
        "hits": Level.WARN,
        "cluster c": Level.FAIL,
        "cluster c versions": Level.WARN,
        "member b": Level.WARN,
    }
    well = pb.StatusReply(
        tiers=[pb.TierStatus(name="nvme", devices=[pb.DeviceStatus(path="/d", state="ok", direct=True)])],
        counters=pb.Counters(hit_tokens={"dram": 16}, committed_blocks=10, acquires=500),
        cluster=pb.ClusterStatus(name="c", connected=True, joined=True),
    )
    assert levels(_health(well)) == {"cluster c": Level.OK}


def test_engines_of_one_name_that_share_nothing_are_told() -> None:
    def space(label: str, mark: int, sessions: int = 1, tenant: str = "") -> pb.NamespaceStatus:
        return pb.NamespaceStatus(fingerprint=bytes([mark]) * 32, label=label, sessions=sessions, tenant=tenant)

    apart = pb.StatusReply(namespaces=[space("m", 1), space("m", 2)])
    (told,) = _sharing(apart)
    assert (told.what, told.level) == ("sharing of m", Level.WARN)
    fine = [space("m", 1), space("m", 2, sessions=0), space("m", 3, tenant="t"), space("other", 4)]
    assert not list(_sharing(pb.StatusReply(namespaces=fine)))


def engine_says(fake, sidecar: pb.StatusReply | None = None) -> dict[str, Finding]:
    with fakes.serving(fake):
        url = fake.url
        return {each.what.replace(url, "URL"): each for each in look_at_engine(EngineHttp(url), sidecar)}


def test_what_engines_tell_of_their_cache_is_judged() -> None:
    plain = engine_says(fakes.Fake("vllm"))
    assert "serves fake; it is not kvterrace's own" in plain["engine URL"].said
    own = engine_says(fakes.Fake("own"), pb.StatusReply())
    assert own["cache of engine URL"].level is Level.WARN
    assert "not of this sidecar" in own["cache of engine URL"].said
    fake = fakes.Fake("own")
    sick = {"version": "0.0.1", "phase": "ready", "trouble": "", "connector": {"kind": "sidecar", "connected": False}}
    get = fake.get
    fake.get = lambda path: (200, sick) if path == "/status.json" else get(path)
    found = engine_says(fake)
    assert found["engine URL"].level is Level.WARN  # another version
    assert found["cache of engine URL"].level is Level.FAIL
    sick["connector"] = None
    sick["trouble"] = "The model is loading."
    found = engine_says(fake)
    assert found["engine URL"].level is Level.FAIL
    assert "--kv-connector" in found["cache of engine URL"].do


async def test_a_valkey_that_is_away_is_a_finding() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = server.getsockname()[1]
    (found,) = await look_at_valkey(f"redis://:secret@127.0.0.1:{port}/0")
    assert found.level is Level.FAIL
    assert "secret" not in found.what + found.said
