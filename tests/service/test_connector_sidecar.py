"""The connector over a real `kvterrace serve`: exact bytes, a sidecar killed in the middle, and its return."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from kvterrace.connector import ConnectorLimits, LoadDone, Model, Offer, Place, SaveDone, SessionRefused, make_connector
from kvterrace.kvstore.service.admin import fetch_status
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.service

B = 16
SHAPE = (2, 8, 2, B, 64)  # 128 KiB a block
PAGES = 512
MODEL = Model(weights_digest=b"w" * 32)


class Sidecar:
    """A `kvterrace serve` that can be killed and started again on the same socket."""

    def __init__(self, folder: Path, dram: str = "96MiB") -> None:
        self.socket = folder / "kv.sock"
        self._command = [sys.executable, "-m", "kvterrace.kvstore", "serve", "--uds", str(self.socket), "--dram", dram]
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.socket}"

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not self._answers():
            assert self.process.poll() is None, "the sidecar ended"
            assert time.monotonic() < end, "the sidecar does not answer"
            time.sleep(0.02)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def kill(self, sign: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(sign)
        self.process.wait(10)

    def check(self) -> None:
        """Recounts every slot and lease of the store."""
        assert asyncio.run(fetch_status(self.address, check=True, timeout_s=10)).check_error == ""


class Engine:
    """A pool, its connector, and a wait for events."""

    def __init__(self, address: str, **place) -> None:
        self.pool = torch.zeros((PAGES, *SHAPE))
        self.woken = threading.Event()
        place = Place(address=address, **place)
        self.connector = make_connector("sidecar", self.pool, self.woken.set, model=MODEL, place=place)
        self.events: list[Offer | LoadDone | SaveDone] = []

    def wait(self, kind: type, request_id: str, timeout_s: float = 10.0):
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            for event in self.events:
                if isinstance(event, kind) and event.request_id == request_id:
                    self.events.remove(event)
                    return event
            self.woken.wait(0.1)
            self.woken.clear()
            self.events += self.connector.poll()
        raise AssertionError(f"no {kind.__name__} for {request_id}")

    def fetch(self, request_id: str, tokens: bytes, blocks: int) -> Offer:
        self.connector.fetch(request_id, tokens, 0, blocks)
        return self.wait(Offer, request_id)

    def load(self, request_id: str, pages) -> LoadDone:
        self.connector.load(request_id, pages)
        return self.wait(LoadDone, request_id)

    def save(self, request_id: str, tokens: bytes, pages) -> SaveDone:
        self.connector.save(request_id, tokens, 0, pages)
        return self.wait(SaveDone, request_id)

    def reattached(self, timeout_s: float = 15.0) -> None:
        end = time.monotonic() + timeout_s
        while not self.connector.status().connected:
            assert time.monotonic() < end, "not reattached"
            time.sleep(0.02)


@pytest.fixture
def sidecar() -> Iterator[Sidecar]:
    with tempfile.TemporaryDirectory(prefix="kvterrace-test-") as folder:
        sidecar = Sidecar(Path(folder))
        yield sidecar
        if sidecar.process is not None and sidecar.process.poll() is None:
            sidecar.kill(signal.SIGTERM)


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    engines: list[Engine] = []
    yield engines
    for engine in engines:
        engine.connector.close()


def prompt(blocks: int, seed: int, extra: int = 0) -> bytes:
    return pack_tokens(np.random.default_rng(seed).integers(0, 50_000, blocks * B + extra).tolist())


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_another_engine_loads_what_one_saved(sidecar: Sidecar, engines: list[Engine], extra: int):
    sidecar.start()
    engines += [Engine(sidecar.address), Engine(sidecar.address)]
    one, other = engines
    tokens, full = prompt(20, seed=1, extra=extra), 20 + (extra < 0) * -1
    one.pool[:full] = torch.randn(full, *SHAPE)
    assert one.save("a", tokens, range(full)) == SaveDone("a", 0, full, full)
    offer = other.fetch("b", tokens, full)
    assert offer == Offer("b", full, {"dram": full * B}, "")
    pages = [*range(100, 110), *range(300, 290, -1)][:full]
    assert other.load("b", pages) == LoadDone("b", full, {"dram": full * B}, "")
    assert torch.equal(other.pool[pages], one.pool[:full])
    one.connector.close()
    other.connector.close()
    sidecar.check()


def test_a_killed_sidecar_ends_every_call_and_is_used_again_when_it_is_back(sidecar: Sidecar, engines: list[Engine]):
    sidecar.start()
    engine = Engine(sidecar.address)
    engines.append(engine)
    shared = prompt(128, seed=1)
    engine.pool[:128] = torch.randn(128, *SHAPE)
    content = engine.pool[:128].clone()
    assert engine.save("first", shared, range(128)).saved == 128
    kill = threading.Timer(0.3, sidecar.kill)
    kill.start()
    done: list[LoadDone] = []
    saved: list[SaveDone] = []
    number, end = 0, time.monotonic() + 1.0
    while time.monotonic() < end:
        number += 1
        engine.connector.save(f"s{number}", prompt(32, seed=100 + number), 0, range(32))
        if engine.fetch(f"r{number}", shared, 128).blocks == 128:
            engine.connector.load(f"r{number}", range(256, 384))
            done.append(engine.wait(LoadDone, f"r{number}"))
            good = done[-1].blocks_ok
            assert torch.equal(engine.pool[256 : 256 + good], content[:good])
    kill.join()
    saved += [engine.wait(SaveDone, f"s{i}") for i in range(1, number + 1)]
    assert any(load.blocks_ok == 128 for load in done)
    assert engine.events == []
    assert not engine.connector.status().connected
    begun = time.monotonic()
    assert engine.fetch("gone", shared, 128) == Offer("gone", 0, {}, "disconnected")
    assert engine.save("gone", shared, range(32)).saved == 0
    assert time.monotonic() - begun < 0.1, "without a sidecar nobody waits"
    sidecar.start()
    engine.reattached()
    assert engine.fetch("again", shared, 128).blocks == 0
    assert engine.save("again", shared, range(128)).saved == 128
    assert engine.fetch("hit", shared, 128).blocks == 128
    engine.pool[256:384] = 0
    assert engine.load("hit", range(256, 384)).blocks_ok == 128
    assert torch.equal(engine.pool[256:384], content)
    sidecar.check()


def test_a_load_goes_on_from_the_mapping_of_a_sidecar_that_has_died(sidecar: Sidecar, engines: list[Engine]):
    sidecar.start()
    engine = Engine(sidecar.address)
    engines.append(engine)
    tokens = prompt(64, seed=2)
    engine.pool[:64] = torch.randn(64, *SHAPE)
    engine.save("a", tokens, range(64))
    assert engine.fetch("b", tokens, 64).blocks == 64
    sidecar.kill()
    end = time.monotonic() + 5
    while engine.connector.status().connected and time.monotonic() < end:
        time.sleep(0.01)
    assert engine.load("b", range(100, 164)) == LoadDone("b", 64, {"dram": 64 * B}, "")
    assert torch.equal(engine.pool[100:164], engine.pool[:64])


def test_a_stopped_sidecar_costs_the_deadline_at_most(sidecar: Sidecar, engines: list[Engine]):
    sidecar.start()
    limits = ConnectorLimits(acquire_deadline_s=0.2)
    engine = Engine(sidecar.address, limits=limits)
    engines.append(engine)
    assert sidecar.process is not None
    sidecar.process.send_signal(signal.SIGSTOP)
    try:
        for i in range(3):
            begun = time.monotonic()
            offer = engine.fetch(f"r{i}", prompt(4, seed=3), 4)
            assert offer.blocks == 0
            assert offer.reason in {"deadline", "disconnected"}
            assert time.monotonic() - begun < 0.6
    finally:
        sidecar.process.send_signal(signal.SIGCONT)


def test_an_engine_starts_without_a_sidecar_and_finds_it_later(sidecar: Sidecar, engines: list[Engine]):
    begun = time.monotonic()
    engine = Engine(sidecar.address)
    engines.append(engine)
    assert time.monotonic() - begun < 5
    assert engine.fetch("a", prompt(2, seed=4), 2) == Offer("a", 0, {}, "disconnected")
    sidecar.start()
    engine.reattached()
    assert engine.save("b", prompt(2, seed=4), [0, 1]).saved == 2
    assert engine.fetch("c", prompt(2, seed=4), 2).blocks == 2


def test_a_refused_engine_is_told_the_field(sidecar: Sidecar, engines: list[Engine]):
    sidecar.start()
    engines.append(Engine(sidecar.address))
    pool = torch.zeros((4, 1, 8, 2, B, 64))
    with pytest.raises(SessionRefused) as refusal:
        make_connector("sidecar", pool, lambda: None, model=MODEL, place=Place(address=sidecar.address))
    assert refusal.value.field == "kv_heads"


def test_memory_does_not_grow_when_the_sidecar_comes_and_goes(sidecar: Sidecar, engines: list[Engine]):
    sidecar.start()
    engine = Engine(sidecar.address)
    engines.append(engine)
    this = psutil.Process()

    def arenas() -> int:
        return len({m.path for m in this.memory_maps(grouped=False) if "kvterrace-" in m.path and ".arena" in m.path})

    for i in range(3):
        engine.save(f"s{i}", prompt(4, seed=i), range(4))
        engine.fetch(f"r{i}", prompt(4, seed=i), 4)
        assert engine.load(f"r{i}", range(10, 14)).blocks_ok == 4
        sidecar.kill()
        sidecar.start()
        engine.reattached()
    assert engine.save("last", prompt(4, seed=9), range(4)).saved == 4
    # The one in use, and one that the last copy may still hold. What else keeps one (the thread that fills the page
    # table, a traceback's frames) ends by itself.
    end = time.monotonic() + 10
    while gc.collect() >= 0 and arenas() > 2:
        assert time.monotonic() < end, "mappings of dead sidecars stay"
        time.sleep(0.1)
