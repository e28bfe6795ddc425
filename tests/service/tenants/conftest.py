"""The sidecar tests' helpers, and a sidecar that two tenants share."""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from kvterrace.kvstore.security.credentials import CredentialFiles, Credentials


def _load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sidecars = _load("tenants_sidecars", Path(__file__).parents[1] / "sidecar" / "conftest.py")
folder, own, namespace, connect, tools = (
    sidecars.folder,
    sidecars.own,
    sidecars.namespace,
    sidecars.connect,
    sidecars.tools,
)

TENANTS = """
secret_file = "secret"
[[tenant]]
name = "acme"
dram_quota = "256KiB"
dram_floor = "64KiB"
[[tenant]]
name = "zeta"
[[shared_head]]
file = "head"
written_by = ["acme"]
"""
PEOPLE = {
    "ada": 'tenant = "acme"\nroles = ["engine"]',
    "zoe": 'tenant = "zeta"\nroles = ["engine"]',
    "oli": 'roles = ["operator"]',
}


class People:
    """What each of them shows; `flags` for the command line."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in PEOPLE:
            path = folder / f"{name}.token"
            path.touch(0o600)
            path.write_text(f"of-{name}\n")

    def __getitem__(self, name: str) -> Credentials:
        return Credentials(CredentialFiles(token=self._folder / f"{name}.token"))

    def flags(self, name: str) -> list[str]:
        return ["--token-file", str(self._folder / f"{name}.token")]


@pytest.fixture
def people(folder: Path) -> People:
    return People(folder)


@pytest.fixture
def shared(own, folder: Path, people: People):
    """Call it with more flags: a sidecar that acme and zeta share, and that asks everybody on TCP who they are."""
    rows = [
        f'[[identity]]\nname = "{name}"\ntoken_sha256 = "{hashlib.sha256(f"of-{name}".encode()).hexdigest()}"\n{row}'
        for name, row in PEOPLE.items()
    ]
    (folder / "identities.toml").write_text("\n".join(rows))
    (folder / "secret").touch(0o600)
    (folder / "secret").write_text("s" * 40)
    (folder / "head").write_text(" ".join(map(str, range(64))))  # four blocks
    (folder / "tenants.toml").write_text(TENANTS)

    def start(*flags: str):
        who = ["--identities", str(folder / "identities.toml"), "--audit-log", str(folder / "audit")]
        tenants = ["--tenants", str(folder / "tenants.toml")]
        return own.start("--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *who, *tenants, *flags)

    return start


@pytest.fixture
def kvterrace():
    """Call it with arguments of the program: what it did."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kvterrace.kvstore", *arguments]
        return subprocess.run(
            command, env=sidecars.environment(), capture_output=True, text=True, timeout=60, check=False
        )

    return run
