"""The lossy KV codecs on a CPU: what a copy with its checksum costs with one, against a copy of the exact bytes.

Workload: the demo model's blocks (737,280 bytes in float32), in the pieces that the copy threads work on, one thread.
Times are processor time: on a shared machine they still compare. `bytes` is what a block takes in DRAM.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import xxhash
from kvterrace.connector.copiers import make_copier
from kvterrace.connector.factory import Model, namespace_of

SHAPE = (3, 30, 2, 16, 64)
BLOCKS = 32
REPEATS = 9
CODECS = ("none", "int8", "fp8")
Row = dict[str, object]


class Path:
    """One codec's copies between a pool and slots."""

    def __init__(self, codec: str) -> None:
        self._pool = torch.randn(BLOCKS, *SHAPE)
        self.layout = namespace_of(self._pool, Model(bytes(32), kv_codec=codec)).layout
        self._copier = make_copier(self._pool, self.layout)
        slots = np.zeros((BLOCKS, self.layout.slot_bytes), dtype=np.uint8)
        self._slots = slots[:, : self.layout.block_bytes]
        self._piece = max(1, self._copier.chunk_bytes // self.layout.block_bytes)

    def save(self) -> None:
        for start in range(0, BLOCKS, self._piece):
            for row in self._copier.to_slots(start, self._slots[start : start + self._piece], None):
                xxhash.xxh3_64_intdigest(row)

    def load(self) -> None:
        for start in range(0, BLOCKS, self._piece):
            for row in self._copier.to_pages(self._slots[start : start + self._piece], start, None):
                xxhash.xxh3_64_intdigest(row)


def _seconds(work: Callable[[], None]) -> float:
    began = time.thread_time()
    work()
    return (time.thread_time() - began) / BLOCKS


def run() -> list[Row]:
    paths = {codec: Path(codec) for codec in CODECS}
    times: dict[tuple[str, str], list[float]] = {}
    for repeat in range(REPEATS + 1):  # the first warms up
        for codec, path in paths.items():
            for verb, work in (("save", path.save), ("load", path.load)):
                spent = _seconds(work)
                if repeat:
                    times.setdefault((codec, verb), []).append(spent)
    rows: list[Row] = []
    for (codec, verb), spent in times.items():
        name = f"kv_codec.{codec}.{verb}"
        rows.append({"metric": f"{name}_ms", "value": statistics.median(spent) * 1e3, "unit": "ms/block", "of": ""})
        if codec != "none":
            ratios = [ours / exact for ours, exact in zip(spent, times["none", verb], strict=True)]
            rows.append(
                {"metric": f"{name}_ratio", "value": statistics.median(ratios), "unit": "x", "of": "the exact copy"}
            )
    exact = paths["none"].layout.slot_bytes
    rows += [
        {
            "metric": f"kv_codec.{codec}.bytes_ratio",
            "value": path.layout.slot_bytes / exact,
            "unit": "x",
            "of": "float32",
        }
        for codec, path in paths.items()
        if codec != "none"
    ]
    return rows
