"""The connector with its pool on a CUDA device: ordered after the compute stream, exact bytes, pinned arena."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from kvterrace.connector import LoadDone, Model, Place, SaveDone, make_connector
from kvterrace.kernels import BlockCodec
from kvterrace.radix import pack_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

B = 16
SHAPE = (2, 4, 2, B, 64)  # bfloat16: 32 KiB a block


class Engine:
    def __init__(self, codec: str = "none") -> None:
        self.pool = torch.zeros((128, *SHAPE), dtype=torch.bfloat16, device="cuda")
        self.woken = threading.Event()
        place = Place(dram_bytes=64 << 20, start_timeout_s=30.0)
        self.connector = make_connector(
            "embedded", self.pool, self.woken.set, model=Model(b"w" * 32, kv_codec=codec), place=place
        )

    def wait(self, kind: type):
        end = time.monotonic() + 10
        while time.monotonic() < end:
            self.woken.wait(0.1)
            self.woken.clear()
            for event in self.connector.poll():
                if isinstance(event, kind):
                    return event
        raise AssertionError(f"no {kind.__name__}")


@pytest.fixture
def engine():
    engine = Engine()
    yield engine
    engine.connector.close()


def slow_work() -> torch.Tensor:
    """Queue some tens of milliseconds of GPU work on the current stream."""
    a = torch.randn(4096, 4096, device="cuda")
    for _ in range(20):
        a = a @ a / 4096
    return a


def test_a_save_reads_what_the_step_before_it_will_have_written(engine: Engine):
    tokens, want = pack_tokens(list(range(40 * B))), torch.randn(40, *SHAPE).to(torch.bfloat16)
    device_want = want.cuda()
    slow_work()
    engine.pool[:40].copy_(device_want)  # queued, not done, when save() is called
    engine.connector.save("a", tokens, 0, range(40))
    assert engine.wait(SaveDone).saved == 40
    engine.pool[:40] = 0
    engine.connector.fetch("b", tokens, 0, 40)
    while not engine.connector.poll():
        time.sleep(0.001)
    pages = [*range(60, 80), *range(119, 99, -1)]
    engine.connector.load("b", pages)
    assert engine.wait(LoadDone).blocks_ok == 40
    assert torch.equal(engine.pool[pages].cpu(), want)


def test_a_load_waits_for_the_steps_that_still_read_its_pages(engine: Engine):
    tokens = pack_tokens(list(range(8 * B)))
    engine.pool[:8] = 1.0
    engine.connector.save("a", tokens, 0, range(8))
    engine.wait(SaveDone)
    engine.connector.fetch("b", tokens, 0, 8)
    while not engine.connector.poll():
        time.sleep(0.001)
    engine.pool[64:72] = 3.0
    slow_work()
    read_before = engine.pool[64:72].clone()  # queued behind the slow work: must still see what was there
    engine.connector.load("b", range(64, 72))
    assert engine.wait(LoadDone).blocks_ok == 8
    torch.cuda.synchronize()
    assert (read_before == 3.0).all()
    assert (engine.pool[64:72] == 1.0).all()


@pytest.mark.parametrize("codec", ["int8", "fp8"])
def test_blocks_are_coded_on_the_device_after_the_step_that_writes_them(codec: str):
    engine = Engine(codec)  # its self-test has been through the kernels already
    try:
        tokens, want = pack_tokens(list(range(40 * B))), torch.randn(40, *SHAPE).to(torch.bfloat16)
        device_want = want.cuda()
        slow_work()
        engine.pool[:40].copy_(device_want)
        engine.connector.save("a", tokens, 0, range(40))
        assert engine.wait(SaveDone).saved == 40
        engine.pool[:40] = 0
        engine.connector.fetch("b", tokens, 0, 40)
        while not engine.connector.poll():
            time.sleep(0.001)
        pages = [*range(60, 80), *range(119, 99, -1)]
        engine.connector.load("b", pages)
        assert engine.wait(LoadDone).blocks_ok == 40
        assert BlockCodec(codec, SHAPE, torch.bfloat16).close(want, engine.pool[pages].cpu())
    finally:
        engine.connector.close()
