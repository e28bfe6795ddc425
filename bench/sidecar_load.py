"""How fast a prefix comes out of the store, and goes in, against a plain memcpy of the same bytes in the same run.

A prompt of 2,048 tokens of a 135M-parameter model in float32: 128 blocks of 737,280 bytes. A load is timed from
fetch() to its LoadDone, so it includes the store's answer, the checksums and the wake-ups; a save from save() to its
SaveDone. `sidecar` has a real `kvterrace serve` process behind it, `embedded` the store in this process.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from kvterrace.connector import KVConnector, LoadDone, Model, Offer, Place, SaveDone, make_connector
from kvterrace.connector.copiers import page_rows
from kvterrace.radix import pack_tokens

from ._common import sidecar

PAGE_SHAPE = (3, 30, 2, 16, 64)  # kv_heads, layers, planes, block_tokens, head_dim
BLOCKS = 128
TOKENS = BLOCKS * PAGE_SHAPE[3]
REPEATS = 9
DRAM_BYTES = 512 << 20
WAIT_S = 30.0


class Timed:
    """A connector with the pool it serves; waits for events as an engine's thread does."""

    def __init__(self, connect: Callable[[torch.Tensor, Callable[[], None]], KVConnector]) -> None:
        self.pool = torch.randn((2 * BLOCKS, *PAGE_SHAPE))
        self._woken = threading.Event()
        self.connector = connect(self.pool, self._woken.set)
        self._number = 0

    def wait(self, kind: type[Offer | LoadDone | SaveDone]) -> Offer | LoadDone | SaveDone:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            self._woken.wait(WAIT_S)
            self._woken.clear()
            for event in self.connector.poll():
                if isinstance(event, kind):
                    return event
        raise TimeoutError(f"no {kind.__name__} within {WAIT_S} s")

    def load_s(self, tokens: bytes) -> float:
        """Into the second half of the pool."""
        self._number += 1
        begun = time.perf_counter()
        self.connector.fetch(f"r{self._number}", tokens, 0, BLOCKS)
        offer = self.wait(Offer)
        self.connector.load(f"r{self._number}", range(BLOCKS, 2 * BLOCKS))
        done = self.wait(LoadDone)
        elapsed = time.perf_counter() - begun
        if not isinstance(done, LoadDone) or done.blocks_ok != BLOCKS:
            raise RuntimeError(f"the prefix was not there: {offer}, {done}")
        return elapsed

    def save_s(self, tokens: bytes) -> float:
        """From the first half of the pool."""
        self._number += 1
        begun = time.perf_counter()
        self.connector.save(f"r{self._number}", tokens, 0, range(BLOCKS))
        done = self.wait(SaveDone)
        elapsed = time.perf_counter() - begun
        if not isinstance(done, SaveDone) or done.saved != BLOCKS:
            raise RuntimeError(f"not saved: {done}, {self.connector.status()}")
        return elapsed


def prompt(seed: int) -> bytes:
    return pack_tokens(np.random.default_rng(seed).integers(0, 49_152, TOKENS).tolist())


def run() -> list[dict[str, object]]:
    model = Model(weights_digest=b"benchmark" * 4)
    with sidecar(str(DRAM_BYTES)) as address:
        beside = Timed(
            lambda pool, wake: make_connector("sidecar", pool, wake, model=model, place=Place(address=address))
        )
        within = Timed(
            lambda pool, wake: make_connector("embedded", pool, wake, model=model, place=Place(dram_bytes=DRAM_BYTES))
        )
        try:
            times = measure(beside, within)
        finally:
            beside.connector.close()
            within.connector.close()
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    size = beside.pool[:BLOCKS].nbytes
    of = f"memcpy of the same {size / 1e6:.1f} MB in the same run, {size / medians['memcpy'] / 1e9:.2f} GB/s"
    return [
        {"metric": metric, "value": medians["memcpy"] / medians[name], "unit": "ratio", "of": of}
        for metric, name in (
            ("sidecar.load_ratio", "sidecar load"),
            ("sidecar.save_ratio", "sidecar save"),
            ("embedded.load_ratio", "embedded load"),
        )
    ]


def measure(beside: Timed, within: Timed) -> dict[str, list[float]]:
    """Seconds of each kind, REPEATS of them, interleaved; the first round is not counted (page tables, caches)."""
    shared = prompt(0)
    beside.save_s(shared)
    within.save_s(shared)
    rows = page_rows(beside.pool).numpy()
    source = rows[:BLOCKS].copy()
    times: dict[str, list[float]] = {"memcpy": [], "sidecar load": [], "sidecar save": [], "embedded load": []}
    for repeat in range(-1, REPEATS):
        begun = time.perf_counter()
        np.copyto(rows[BLOCKS:], source)
        taken = [
            time.perf_counter() - begun,
            beside.load_s(shared),
            beside.save_s(prompt(repeat + 2)),
            within.load_s(shared),
        ]
        if repeat >= 0:
            for seconds, elapsed in zip(times.values(), taken, strict=True):
                seconds.append(elapsed)
    return times
