"""What the tests of deploy/ share: the tools, and the chart as Kubernetes would get it."""

import functools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "kvterrace"


def find_tool(name: str) -> str:
    """Beside this Python, or on the path; the test is skipped where neither has it."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@functools.cache
def _render(values: str, sets: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    command = [find_tool("helm"), "template", "rel", str(CHART), "-n", "ns"]
    command += ["-f", str(CHART / "ci" / f"{values}-values.yaml")] if values else []
    for each in sets:
        command += ["--set", each]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    return find_tool


@pytest.fixture(scope="session")
def rendered() -> Callable[..., list[dict[str, Any]]]:
    """rendered("cluster", "replicas=5"): the objects of a set of values of the chart's ci/."""

    def render(values: str, *sets: str) -> list[dict[str, Any]]:
        done = _render(values, sets)
        assert done.returncode == 0, done.stderr
        return [each for each in yaml.safe_load_all(done.stdout) if each]

    return render


@pytest.fixture(scope="session")
def refused() -> Callable[..., str]:
    """What helm says to values that cannot work."""

    def refuse(values: str, *sets: str) -> str:
        done = _render(values, sets)
        assert done.returncode != 0, "it was rendered"
        return done.stderr

    return refuse
