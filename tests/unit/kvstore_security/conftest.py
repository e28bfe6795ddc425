"""An in-process server with the edge before it, and files of identities, tokens and certificates."""

import contextlib
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import grpc.aio
import pytest
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.config import load_config
from kvterrace.kvstore.security.credentials import CredentialFiles, Credentials
from kvterrace.kvstore.security.setup import secured
from kvterrace.kvstore.service.server import GrpcServer
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.store import Store


def _load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


certificates = _load("certificates", Path(__file__).parents[2] / "certificates.py")


@pytest.fixture
def authority(tmp_path: Path):
    return certificates.Authority(tmp_path)


@pytest.fixture
def other_authority(tmp_path: Path):
    return certificates.Authority(tmp_path, "other-ca")


@pytest.fixture
def token(tmp_path: Path) -> Callable[[str], Path]:
    """The file of somebody's token."""

    def make(name: str) -> Path:
        file = tmp_path / f"{name}.token"
        file.touch(0o600)
        file.write_text(f"secret-of-{name}\n")
        return file

    return make


def row(name: str, *roles: str, tenant: str = "", certificate: str = "") -> str:
    """A table of the identities file; without `certificate`, one whose token is secret-of-NAME."""
    proof = f'certificate = "{certificate}"' if certificate else f'token_sha256 = "{digest(f"secret-of-{name}")}"'
    return f'[[identity]]\nname = "{name}"\ntenant = "{tenant}"\nroles = {list(roles)}\n{proof}\n'


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


@pytest.fixture
def identities(tmp_path: Path) -> Callable[..., Path]:
    """Writes the file out of rows."""

    def write(*rows: str) -> Path:
        file = tmp_path / "identities.toml"
        file.write_text("\n".join(rows))
        return file

    return write


class Door:
    """A server, and ways to call it."""

    def __init__(self, server: GrpcServer, servicer: Servicer, store: Store, security) -> None:
        self.server, self.servicer, self.store, self.security = server, servicer, store, security
        self.uds, self.tcp = server.addresses[0], server.addresses[-1]

    @property
    def failures(self) -> dict[str, int]:
        return dict(self.security.guard.failures)


@pytest.fixture
async def open_door(tmp_path: Path):
    """Call it with options of serve: a Door that listens on a Unix socket and loopback TCP."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(**options: object) -> Door:
            flags = {"listen": "127.0.0.1:0", "uds": tmp_path / "kv.sock", **options}
            security = stack.enter_context(secured(load_config(flags)))
            arena = Arena.create(1 << 20, directory=tmp_path)
            stack.callback(arena.close)
            store = Store(arena)
            stack.callback(store.close)
            servicer = Servicer(store, str(arena.path), arena.boot_id)
            server = GrpcServer(servicer, tmp_path / "kv.sock", "127.0.0.1:0", security)
            await server.start()
            stack.push_async_callback(server.stop)
            return Door(server, servicer, store, security)

        yield make


def credentials(**files: Path) -> Credentials:
    return Credentials(CredentialFiles(**files))


def code_of(trouble: pytest.ExceptionInfo[grpc.aio.AioRpcError]) -> str:
    return trouble.value.code().name


@pytest.fixture
def tools():
    """row, digest, credentials, code_of: helpers of this file."""
    return sys.modules[__name__]
