"""`kvterrace engine`: a user's mistake is one line and exit code 2. One of them as a process, the others by main() in
this one, since a process takes seconds to import torch."""

import os
import socket
import subprocess
import sys

import pytest
from kvterrace.kvstore.cli import main

pytestmark = [pytest.mark.service, pytest.mark.timeout(120)]


@pytest.fixture
def engine(monkeypatch, capsys):
    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
        command = ["kvterrace", "engine", *arguments]
        monkeypatch.setattr(sys, "argv", command)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return subprocess.CompletedProcess(command, end.value.code, out, err)

    return run


def complaint(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("kvterrace engine: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


@pytest.fixture
def no_model(tmp_path) -> str:
    """A file that is no model."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF or not " * 100)
    return str(path)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--kv-connector", "cloud"], ["--kv-connector", "none", "embedded", "sidecar"]),
        (["--no-prefix-cache"], ["kv_connector", "prefix_cache"]),
        (["--max-running", "900"], ["max_running", "max_step_tokens"]),
        (["--max-queue", "0"], ["--max-queue"]),
        (["--max-queue-wait", "0"], ["--max-queue-wait"]),
        (["--kv-pool", "0"], ["--kv-pool"]),
        (["--config", "/no/such/file.toml"], ["/no/such/file.toml"]),
        (["--log-level", "loud"], ["--log-level", "loud"]),
        (["--device", "abacus"], ["device", "abacus"]),
        (["--host", "256.1.1.1"], ["256.1.1.1"]),
        (["--host", "0.0.0.0"], ["--host", "0.0.0.0", "--tls-cert", "--api-keys", "--insecure-listen"]),
        ([], ["GGUF"]),
    ],
)
def test_a_mistake_is_one_line(engine, no_model, flags, words):
    line = complaint(engine(no_model, "--port", "0", *flags))
    assert all(word in line for word in words), line


def test_a_mistake_is_one_line_of_a_process(no_model):
    command = [sys.executable, "-m", "kvterrace.kvstore", "engine", no_model, "--port", "0"]
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert "GGUF" in complaint(done)


def test_a_size_that_is_none_is_explained(engine, no_model):
    done = engine(no_model, "--kv-dram", "4 potatoes")
    assert done.returncode == 2
    assert "'4 potatoes' is not a size" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_model_is_named(engine, tmp_path):
    assert str(tmp_path / "none.gguf") in complaint(engine(str(tmp_path / "none.gguf"), "--port", "0"))


def test_an_unknown_variable_is_named(engine, no_model):
    assert "KVTERRACE_ENGINE_DRAMM" in complaint(engine(no_model, KVTERRACE_ENGINE_DRAMM="1GiB"))


def test_a_port_in_use_is_named(engine, no_model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"127.0.0.1:{port}" in complaint(engine(no_model, "--port", str(port)))


def test_the_commands_are_listed_without_importing_torch():
    script = (
        "import sys, typer; from kvterrace.engine.cli import register; app = typer.Typer(); register(app); "
        "sys.exit('torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    assert subprocess.run([sys.executable, "-c", script], timeout=60, env=environment, check=False).returncode == 0
