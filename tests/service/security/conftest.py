"""The sidecar tests' helpers, and a certificate authority."""

import importlib.util
import sys
from pathlib import Path

import pytest


def _load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_TESTS = Path(__file__).parents[2]
certificates = _load("certificates", _TESTS / "certificates.py")
sidecars = _load("sidecar_fixtures", _TESTS / "service" / "sidecar" / "conftest.py")

folder, serve_in, valkey, namespace, connect, tools = (
    sidecars.folder,
    sidecars.serve_in,
    sidecars.valkey,
    sidecars.namespace,
    sidecars.connect,
    sidecars.tools,
)
environment = sidecars.environment


@pytest.fixture
def authority(folder: Path):
    return certificates.Authority(folder)


@pytest.fixture
def kvterrace():
    """Call it with arguments of the program: what it did."""
    import subprocess

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvterrace.kvstore", *arguments]
        return subprocess.run(
            command, env={**environment(), **variables}, capture_output=True, text=True, timeout=60, check=False
        )

    return run
