"""Real stores, a snapshot of one, a sidecar with a made-up engine, and a headless browser."""

import asyncio
import contextlib
import hashlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.dashboard.snapshot import Reader, Settings, Slow, Snapshot
from kvterrace.kvstore.events.sight import everything
from kvterrace.kvstore.security.credentials import CredentialFiles, Credentials
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.types import Miss, Origin, Receipt
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

BLOCK_TOKENS = 16
LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=BLOCK_TOKENS, head_dim=8, dtype="float32")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
START_S = 90.0  # a loaded machine takes ten times as long as an idle one


def namespace(label: str = "tiny", weights: bytes = b"weights-1") -> Namespace:
    return Namespace(weights_digest=weights, layout=LAYOUT, label=label)


def tokens(blocks: int, first: int = 0) -> bytes:
    return pack_tokens(range(first, first + blocks * BLOCK_TOKENS))


class Shop:
    """A store, its servicer, and the clock that its dashboard reads."""

    def __init__(self, settings: Settings) -> None:
        self.store = Store(Arena.anonymous(4 << 20))
        self.servicer = Servicer(self.store, "none", b"b" * 16)
        self.now_s = 1_800_000_000.0
        self.state = "ready"
        self.reader = Reader(self.store, self.servicer, settings, lambda: self.state, lambda: self.now_s)

    def seen(self, **more: Any) -> Snapshot:
        """What an operator sees; more: fields to replace."""
        return replace(self.reader.read(everything, Slow()), **more)

    def fill(self, blocks: int) -> None:
        """A prompt of so many blocks, with zeros."""
        session = self.store.open_session(namespace(), client="engine-1")
        given = session.reserve(tokens(blocks), start=0, count=blocks)
        session.commit(given.lease, [xxhash.xxh3_64_intdigest(bytes(LAYOUT.block_bytes))] * len(given.slots))


@pytest.fixture
def shop() -> Iterator[Shop]:
    made = Shop(Settings("node-1", 2.0, "EUR"))
    yield made
    made.store.close()


def identities_file(folder: Path, *rows: tuple[str, str, str]) -> Path:
    """rows: name, role, tenant; the token of each is secret-of-NAME."""
    file = folder / "identities.toml"
    file.write_text(
        "".join(
            f'[[identity]]\nname = "{name}"\ntenant = "{tenant}"\nroles = ["{role}"]\n'
            f'token_sha256 = "{hashlib.sha256(f"secret-of-{name}".encode()).hexdigest()}"\n'
            for name, role, tenant in rows
        )
    )
    file.chmod(0o600)
    return file


class Node:
    """One `kvterrace serve`, and an engine that is made up, whose session lives on a thread of its own."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder, self.uds, self.flags = folder, folder / "kv.sock", flags
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._clients: list[SidecarClient] = []
        self.start("127.0.0.1:0")

    def start(self, http: str) -> None:
        (self.folder / "arenas").mkdir(exist_ok=True)
        where = ["--uds", str(self.uds), "--arena-dir", str(self.folder / "arenas"), "--http", http]
        command = [sys.executable, "-m", "kvterrace.kvstore", "serve", "--dram", "8MiB", *where, *self.flags]
        with (self.folder / "out").open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        end = time.monotonic() + START_S
        while "http on" not in self.output():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < end, self.output()
            time.sleep(0.02)
        self.url = self.output().split("http on ")[1].split()[0]

    def output(self) -> str:
        return (self.folder / "out").read_text()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def engine(self, label: str = "tiny", weights: bytes = b"weights-1", token: Path | None = None) -> SidecarClient:
        credentials = Credentials(CredentialFiles(token=token)) if token is not None else None

        async def make() -> SidecarClient:
            made = SidecarClient(
                f"unix:{self.uds}", namespace(label, weights), client="engine-1", credentials=credentials
            )
            await made.start()
            while not made.connected:  # noqa: ASYNC110  # it has no event to wait for
                await asyncio.sleep(0.01)
            return made

        self._clients.append(self.run(make()))
        return self._clients[-1]

    def serve(self, client: SidecarClient, prompt: bytes, request_id: str, **receipt: Any) -> None:
        """As an engine serves a request: ask, compute the rest, save it, and tell what it got."""
        self.run(_serve(client, prompt, request_id, receipt))

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)

    def close(self) -> None:
        for each in self._clients:
            self.run(each.close())
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _serve(client: SidecarClient, prompt: bytes, request_id: str, receipt: dict[str, Any]) -> None:
    got = await client.acquire(prompt, skip=0, deadline_s=0.0, origin=Origin(request_id))
    by_tier = dict(got.tiers)
    by_tier["computed"] = len(prompt) // 4 - sum(by_tier.values())
    await client.release(got.lease)
    given = await client.reserve(prompt, start=0, count=len(prompt) // (4 * BLOCK_TOKENS))
    if given.lease:
        assert given.arena is not None
        for ref in given.slots:
            given.arena.block(ref.slot)[: LAYOUT.block_bytes] = np.zeros(LAYOUT.block_bytes, np.uint8)
        checksum = xxhash.xxh3_64_intdigest(bytes(LAYOUT.block_bytes))
        await client.commit(given.lease, [checksum] * len(given.slots))
    miss = got.miss or (Miss(got.reason) if got.reason else None)
    told = {"ttft_s": 0.2, "saved_s": 0.5, **receipt}
    await client.served(Receipt(request_id, by_tier, miss, **told))


class Staged:
    """A process of made_up.py. It starts while others do: only who asks for its url waits for it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    @cached_property
    def url(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


@contextlib.contextmanager
def running(*flags: str, rows: Sequence[tuple[str, str, str]] = ()) -> Iterator[Node]:
    folder = Path(tempfile.mkdtemp(prefix="kvt-"))  # a socket's address may not be long
    known = ["--identities", str(identities_file(folder, *rows))] if rows else []
    node = Node(folder, *flags, *known)
    try:
        yield node
    finally:
        node.close()
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def start() -> Callable[..., Any]:
    """Call it with flags, and perhaps rows of identities: a node for as long as the body runs."""
    return running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A module's: Playwright's loop runs in this thread for as long, and there cannot be another."""
    if not CHROMIUM:
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Visit:
    """A page of its own cookies, and what went wrong in it."""

    def __init__(self, browser: Any, origin: str, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.foreign: list[str] = []
        self.page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        own = (origin, origin.replace("http", "ws", 1), "data:")
        self.page.on("request", lambda each: None if each.url.startswith(own) else self.foreign.append(each.url))


@pytest.fixture(scope="module")
def staged() -> Iterator[Any]:
    """A node with tenants and a cluster, none of which is real."""
    command = [sys.executable, str(Path(__file__).parent / "made_up.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Staged(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.fixture(scope="session")
def browse() -> type[Visit]:
    return Visit
