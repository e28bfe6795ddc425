"""One sidecar, which two tenants share, for all tests of this folder; and the program's commands, in this process."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kvterrace.kvstore import cli
from typer.testing import CliRunner


def _load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sidecars = _load("verify_sidecars", Path(__file__).parents[1] / "sidecar" / "conftest.py")

PEOPLE = {
    "ada": 'tenant = "acme"\nroles = ["engine"]',
    "zoe": 'tenant = "zeta"\nroles = ["engine"]',
    "vera": 'roles = ["engine", "operator"]',
}


def _sha(name: str) -> str:
    return hashlib.sha256(f"of-{name}".encode()).hexdigest()


@pytest.fixture(scope="session")
def shared() -> Iterator[object]:
    """8 MiB; who calls is asked, by TCP."""
    with sidecars.scratch() as folder:
        rows = [f'[[identity]]\nname = "{name}"\ntoken_sha256 = "{_sha(name)}"\n{row}' for name, row in PEOPLE.items()]
        (folder / "identities.toml").write_text("\n".join(rows))
        for name, text in {**{f"{who}.token": f"of-{who}\n" for who in PEOPLE}, "secret": "s" * 40}.items():
            (folder / name).touch(0o600)
            (folder / name).write_text(text)
        (folder / "tenants.toml").write_text(
            'secret_file = "secret"\n[[tenant]]\nname = "acme"\n[[tenant]]\nname = "zeta"\n'
        )
        served = sidecars.Served(folder)
        try:
            who = ["--identities", str(folder / "identities.toml"), "--tenants", str(folder / "tenants.toml")]
            yield served.start("--listen", "127.0.0.1:0", *who)
        finally:
            served.close()


@pytest.fixture
def kvterrace() -> Callable[..., tuple[int, str, str]]:
    """(exit code, stdout, stderr) of the program with these arguments."""

    def run(*arguments: object) -> tuple[int, str, str]:
        result = CliRunner().invoke(cli.app, [str(each) for each in arguments], catch_exceptions=False)
        return result.exit_code, result.stdout, result.stderr

    return run
