"""What the disk benchmarks need: a directory on a disk, page-aligned memory, a plain O_DIRECT reader and writer."""

import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DEFAULT_DIR = Path(__file__).parents[1] / ".cache" / "bench"


@contextmanager
def folder() -> Iterator[Path]:
    """An empty directory within KVTERRACE_BENCH_DIR (or .cache/bench), gone afterwards."""
    base = Path(os.environ.get("KVTERRACE_BENCH_DIR", DEFAULT_DIR))
    base.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="disk-", dir=base))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def aligned(size: int, seed: int | None = None) -> NDArray[np.uint8]:
    """uint8 [size] that begins at a page: touched, and of random content when there is a seed."""
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    memory[:] = 0 if seed is None else np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return memory


class Plain:
    """The yardstick: one preallocated file, requests of `request` bytes, `depth` threads, no header, no checksum."""

    def __init__(self, path: Path, request: int, depth: int) -> None:
        self.path = path
        self.request = request
        self._pool = ThreadPoolExecutor(depth)

    def write(self, memory: NDArray[np.uint8], *, sync: bool) -> None:
        fd = os.open(self.path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_DIRECT, 0o600)
        try:
            os.posix_fallocate(fd, 0, len(memory))
            list(self._pool.map(lambda at: os.pwritev(fd, [memory[at : at + self.request]], at), self._starts(memory)))
            if sync:
                os.fdatasync(fd)
        finally:
            os.close(fd)

    def read(self, memory: NDArray[np.uint8], first: int = 0) -> None:
        """Fill `memory` with what lies from byte `first` on."""
        self.scatter([memory[at : at + self.request] for at in self._starts(memory)], 1, first)

    def scatter(self, parts: Sequence[NDArray[np.uint8]], count: int, first: int = 0) -> None:
        """Fill `parts`, all of one size, `count` of them a request, with what lies from byte `first` on."""

        def fill(at: int) -> None:
            some = parts[at : at + count]
            assert os.preadv(fd, some, first + at * len(parts[0])) == sum(map(len, some)), "the file is shorter"

        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECT)
        try:
            list(self._pool.map(fill, range(0, len(parts), count)))
        finally:
            os.close(fd)

    def close(self) -> None:
        self._pool.shutdown()

    def _starts(self, memory: NDArray[np.uint8]) -> range:
        return range(0, len(memory), self.request)
