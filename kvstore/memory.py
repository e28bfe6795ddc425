"""How much memory there is (for this container, not for the machine), and page tables filled ahead of use."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..proto import PAGE_BYTES
from .errors import ArenaError

DEFAULT_SHARE = 4  # an arena takes a quarter of the memory unless told otherwise
MAX_DEFAULT_BYTES = 64 << 30
_MADV_POPULATE_WRITE = 23  # Linux 5.14; not in Python's mmap module
_PREFAULT_BYTES = 32 << 20
LOWEST_PRIORITY = 19  # nice


def memory_limit_bytes(root: Path = Path("/")) -> int:
    """Bytes this process may use at most: the machine's memory or the tightest cgroup limit above us (v1 or v2)."""
    total = 1024 * int(next(line for line in _lines(root / "proc/meminfo") if line.startswith("MemTotal:")).split()[1])
    limits = [total]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            limits += _limits(root / "sys/fs/cgroup", path, "memory.max")
        elif "memory" in controllers.split(","):
            limits += _limits(root / "sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
    return min(limits)


def default_capacity_bytes(directory: Path) -> int:
    """A capacity that fits: a quarter of the memory limit, half of what `directory` has free, 64 GiB at most."""
    stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    wanted = min(memory_limit_bytes() // DEFAULT_SHARE, free // 2, MAX_DEFAULT_BYTES)
    return wanted // PAGE_BYTES * PAGE_BYTES


def check_room(directory: Path | None, needed_bytes: int) -> None:
    """ArenaError, with what to do, if `directory` (None: plain memory) cannot hold needed_bytes more."""
    limit = memory_limit_bytes()
    if needed_bytes > limit:
        raise ArenaError(
            f"the arena needs {_mib(needed_bytes)}, but this machine or container may use {_mib(limit)} in all; "
            "choose a smaller capacity or raise the container's memory limit"
        )
    if directory is None:
        return
    try:
        stat = os.statvfs(directory)
    except OSError as error:
        raise ArenaError(f"the arena's directory {directory} cannot be used: {error.strerror}") from error
    free = stat.f_bavail * stat.f_frsize
    if needed_bytes > free:
        raise ArenaError(
            f"the arena needs {_mib(needed_bytes)}, but {directory} has {_mib(free)} free of "
            f"{_mib(stat.f_blocks * stat.f_frsize)}; choose a smaller capacity, or enlarge it: "
            f"mount -o remount,size=... {directory}, docker run --shm-size=..., or in Kubernetes an emptyDir of "
            "medium Memory mounted there"
        )


class Prefault:
    """A thread that fills the page table of a writable mapping, so that the first copies meet no page faults.

    Content is left alone. Where the kernel has no MADV_POPULATE_WRITE, it reads one byte a page instead.
    """

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self._data: NDArray[np.uint8] | None = data
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvterrace-prefault", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float) -> bool:
        """True once it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Stop after the chunk in hand, and drop the mapping."""
        self._stop.set()
        self._thread.join()
        self._data = None

    def _run(self) -> None:
        assert self._data is not None
        data = self._data
        # Of this thread alone (Linux): whoever has a request to serve goes first.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST_PRIORITY)
        # Through ctypes, which lets go of the GIL meanwhile; mmap.madvise() does not.
        madvise = ctypes.CDLL(None, use_errno=True).madvise
        address = data.ctypes.data
        for start in range(0, len(data), _PREFAULT_BYTES):
            if self._stop.is_set():
                return
            size = min(_PREFAULT_BYTES, len(data) - start)
            if madvise(ctypes.c_void_p(address + start), ctypes.c_size_t(size), _MADV_POPULATE_WRITE):
                data[start : start + size : PAGE_BYTES].max()


def _limits(mount: Path, path: str, name: str) -> Iterator[int]:
    """Limits set on the cgroup at `path` and above; inside a container `path` may not exist, its root does."""
    folder = mount / path.strip("/")
    for place in (folder, *folder.parents):
        for line in _lines(place / name):
            if line.strip().isdecimal():
                yield int(line)
        if place == mount:
            return


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
