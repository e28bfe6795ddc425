"""Containerfile, Compose and systemd units: linted, and true to the tree they are built from."""

import fnmatch
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
COMPOSE = DEPLOY / "compose" / "compose.yaml"
EXPOSURE = {"kvterrace.service": 1.5, "kvterrace-engine@.service": 2.1}  # of 10, as systemd-analyze judges


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_containerfile_lints(tool: Callable[[str], str]) -> None:
    run(tool("hadolint"), str(DEPLOY / "Containerfile"))


def test_what_is_copied_is_there_and_reaches_the_build() -> None:
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert ignore[0] == "*", "what is not named is no part of an image"
    wanted = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(?:--chmod=\S+ )?(.*)$", CONTAINERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }
    assert copied == set(wanted)
    assert all((ROOT / each).exists() for each in wanted)
    assert any(fnmatch.fnmatch("kvstore/__pycache__", each) for each in ignore)


def test_every_folder_of_the_package_is_in_both_images() -> None:
    folders = {each.parent.name for each in ROOT.glob("*/py.typed")}
    for stage in ("build-sidecar", "build-engine"):
        text = CONTAINERFILE.split(f"AS {stage}\n")[1].split("\nFROM ")[0]
        assert folders <= set(re.findall(r"^COPY (\w+) \w+$", text, re.MULTILINE)), stage


def requirements(extras: str) -> list[str]:
    said = run(sys.executable, str(DEPLOY / "requirements.py"), str(ROOT / "pyproject.toml"), extras)
    return [re.split(r"[<>=\[ ]", line)[0] for line in said.splitlines()]


def test_the_sidecar_image_has_no_torch_and_the_engine_image_has() -> None:
    extras = dict(re.findall(r"^ARG (\w*EXTRAS)=(\S+)$", CONTAINERFILE, re.MULTILINE))
    assert "torch" not in requirements(extras["EXTRAS"])
    assert {"nicegui", "boto3", "pyzmq"} <= set(requirements(extras["EXTRAS"]))
    assert "torch" in requirements(extras["ENGINE_EXTRAS"])


def test_an_extra_that_is_not_there_is_named() -> None:
    command = [sys.executable, str(DEPLOY / "requirements.py"), str(ROOT / "pyproject.toml"), "dashbord"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no extra 'dashbord'" in done.stderr
    assert "Traceback" not in done.stderr


def test_images_run_as_nobody_in_particular() -> None:
    for target in ("sidecar", "engine"):
        text = CONTAINERFILE.split(f"AS {target}\n")[1].split("\nFROM ")[0]
        assert "HEALTHCHECK" in text
        assert re.search(r"^CMD \[", text, re.MULTILINE)
        assert not re.search(r"^USER", text, re.MULTILINE)
    run_stage = CONTAINERFILE.split("AS run\n")[1].split("\nFROM ")[0]
    assert "USER 10001:10001" in run_stage
    assert "PYTHONSAFEPATH=1" in run_stage
    assert 'ENTRYPOINT ["kvterrace"]' in run_stage


def test_no_image_floats() -> None:
    chart = yaml.safe_load((DEPLOY / "helm/kvterrace/values.yaml").read_text())
    compose = yaml.safe_load(COMPOSE.read_text())["services"].values()
    images = [each["image"] for each in compose if not each["image"].startswith("${")]
    images += [chart["cluster"]["valkey"]["image"], *re.findall(r"^ARG BASE=(.*)$", CONTAINERFILE, re.MULTILINE)]
    assert len(images) == 5
    assert all(re.fullmatch(r"[\w/-]+:v?\d+[\w.-]*", each) for each in images), images


def test_compose_is_valid(tool: Callable[[str], str]) -> None:
    run(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", str(COMPOSE))


def test_compose_is_understood(tool: Callable[[str], str]) -> None:
    run(tool("docker-compose"), "-f", str(COMPOSE), "config", "-q")


def test_the_two_of_a_host_share_memory_and_socket_and_nothing_with_the_other() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]

    def shared(one: str, other: str) -> set[str]:
        return {each for each in services[one]["volumes"] if each in services[other]["volumes"]}

    assert shared("sidecar-a", "engine-a") == {"arena-a:/dev/shm", "run-a:/run/kvterrace"}
    assert shared("sidecar-b", "engine-b") == {"arena-b:/dev/shm", "run-b:/run/kvterrace"}
    assert not shared("sidecar-a", "sidecar-b")


def test_compose_publishes_on_loopback_alone() -> None:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ports = [port for each in services.values() for port in each.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_compose_mounts_what_is_there() -> None:
    for each in yaml.safe_load(COMPOSE.read_text())["services"].values():
        for volume in each.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (COMPOSE.parent / source).exists(), source


@pytest.mark.parametrize("unit", sorted(EXPOSURE))
def test_units_are_understood_and_sandboxed(unit: str, tool: Callable[[str], str], tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / unit).read_text()
    # A program that is not installed here would be all that the check complains of.
    name = unit.replace("@", "@llama")
    (tmp_path / name).write_text(text.replace("/opt/kvterrace/bin/kvterrace", sys.executable))
    # An engine wants its sidecar.
    sidecar = (DEPLOY / "systemd/kvterrace.service").read_text()
    (tmp_path / "kvterrace.service").write_text(sidecar.replace("/opt/kvterrace/bin/kvterrace", sys.executable))
    said = run(tool("systemd-analyze"), "verify", "--man=no", str(tmp_path / name))
    assert str(tmp_path) not in said, said
    said = run(tool("systemd-analyze"), "security", "--offline=true", "--no-pager", str(tmp_path / name))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", said)
    assert found is not None, said
    assert float(found[1]) <= EXPOSURE[unit]


def test_units_leave_time_for_a_stop() -> None:
    sidecar = (DEPLOY / "systemd/kvterrace.service").read_text()
    assert int(re.findall(r"^TimeoutStopSec=(\d+)", sidecar, re.MULTILINE)[0]) >= 45, "a stop may write for 30 s"
    drain = (DEPLOY / "systemd/kvterrace.service.d/drain.conf").read_text()
    deadline = int(re.findall(r"--deadline (\d+)", drain)[0])
    assert int(re.findall(r"^TimeoutStopSec=(\d+)", drain, re.MULTILINE)[0]) >= deadline + 45
    assert " --stay " in drain, "without it the process would be gone before systemd stops it"
