"""FaultyFiles: another Files that goes wrong at chosen calls."""

import errno
import mmap
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kvterrace.kvstore.tiers.nvme.files import Access, Files

SLOW_S = 5.0  # a slow call gives up waiting for its release
OPERATIONS = (
    "mkdir",
    "listdir",
    "lock",
    "free_bytes",
    "open_segment",
    "close",
    "size",
    "fallocate",
    "truncate",
    "preadv",
    "pwritev",
    "fdatasync",
    "sync_directory",
    "unlink",
    "rename",
)


@dataclass
class Fault:
    """What happens at the `at`-th call (from 0) of `operation`, and at the `times` - 1 calls after it.

    kind: a name of errno ("EIO"); "short": half of the bytes, in whole sectors; "none": no bytes; "flip": one bit of
    what is read or written is another; "lost": a write that is said to be done and is not; "slow": the call waits for
    `release`; "crash": half of the bytes are written, then `on_crash` is called and nothing works any more.
    """

    operation: str
    at: int
    kind: str
    times: int = 1
    release: threading.Event = field(default_factory=threading.Event)
    on_crash: Callable[[], None] = lambda: None
    fired: int = 0


class FaultyFiles:
    """inner: the files that do the work. calls: how often each operation was asked for."""

    def __init__(self, inner: Files, fault: Fault | None = None) -> None:
        self.fault = fault
        self.calls: Counter[str] = Counter()
        self._inner = inner
        self._lock = threading.Lock()

    def mkdir(self, path: Path) -> None:
        return self._plain("mkdir", lambda: self._inner.mkdir(path))

    def listdir(self, path: Path) -> list[str]:
        return self._plain("listdir", lambda: self._inner.listdir(path))

    def lock(self, path: Path) -> int:
        return self._plain("lock", lambda: self._inner.lock(path))

    def free_bytes(self, path: Path) -> int:
        return self._plain("free_bytes", lambda: self._inner.free_bytes(path))

    def open_segment(self, path: Path, access: Access, *, direct: bool) -> int:
        return self._plain("open_segment", lambda: self._inner.open_segment(path, access, direct=direct))

    def close(self, handle: int) -> None:
        try:
            self._plain("close", lambda: None)
        finally:  # as Linux does: the descriptor is gone, whatever close() says
            self._inner.close(handle)

    def size(self, handle: int) -> int:
        return self._plain("size", lambda: self._inner.size(handle))

    def fallocate(self, handle: int, size: int) -> None:
        return self._plain("fallocate", lambda: self._inner.fallocate(handle, size))

    def truncate(self, handle: int, size: int) -> None:
        return self._plain("truncate", lambda: self._inner.truncate(handle, size))

    def fdatasync(self, handle: int) -> None:
        return self._plain("fdatasync", lambda: self._inner.fdatasync(handle))

    def sync_directory(self, path: Path) -> None:
        return self._plain("sync_directory", lambda: self._inner.sync_directory(path))

    def unlink(self, path: Path) -> None:
        return self._plain("unlink", lambda: self._inner.unlink(path))

    def rename(self, old: Path, new: Path) -> None:
        return self._plain("rename", lambda: self._inner.rename(old, new))

    def preadv(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        kind = self._strike("preadv")
        if kind == "none":
            return 0
        if kind == "short":
            return self._inner.preadv(handle, _half(buffers), offset)
        done = self._inner.preadv(handle, buffers, offset)
        if kind == "flip" and done:
            _flip(buffers)
        return done

    def pwritev(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        kind = self._strike("pwritev")
        if kind == "none":
            return 0
        if kind == "short":
            return self._inner.pwritev(handle, _half(buffers), offset)
        if kind == "lost":
            return sum(buffer.nbytes for buffer in buffers)
        if kind == "crash":
            assert self.fault is not None
            self._inner.pwritev(handle, _half(buffers), offset)
            self.fault.on_crash()
            raise OSError(errno.ENODEV, "dead")
        if kind == "flip":
            buffers = [_copy(buffer) for buffer in buffers]
            _flip(buffers)
        return self._inner.pwritev(handle, buffers, offset)

    def _plain(self, operation: str, call: Callable[[], object]) -> object:
        if self._strike(operation) == "crash":
            assert self.fault is not None
            self.fault.on_crash()
            raise OSError(errno.ENODEV, "dead")
        return call()

    def _strike(self, operation: str) -> str | None:
        """The fault's kind where this call is one of its own; raises it, or waits, where that is all there is to it."""
        with self._lock:
            number = self.calls[operation]
            self.calls[operation] += 1
            fault = self.fault
            if fault is None or fault.operation != operation:
                return None
            if not fault.at <= number < fault.at + fault.times:
                return None
            fault.fired += 1
        if fault.kind == "slow":
            fault.release.wait(SLOW_S)
            return None
        if fault.kind.startswith("E"):
            raise OSError(getattr(errno, fault.kind), f"injected {fault.kind}")
        return fault.kind


def _half(buffers: Sequence[memoryview]) -> list[memoryview]:
    """The first half of the bytes, in whole pages where there are two: what a direct handle can be asked for."""
    left = sum(buffer.nbytes for buffer in buffers) // 2 // 4096 * 4096
    kept: list[memoryview] = []
    for buffer in buffers:
        part = buffer.cast("B")[: min(left, buffer.nbytes)]
        left -= part.nbytes
        if part.nbytes:
            kept.append(part)
    return kept


def _copy(buffer: memoryview) -> memoryview:
    """Page-aligned, as direct handles want it."""
    made = mmap.mmap(-1, buffer.nbytes)
    made[:] = buffer.tobytes()
    return memoryview(made)


def _flip(buffers: Sequence[memoryview]) -> None:
    """One bit in the middle of the largest buffer."""
    largest = max(buffers, key=lambda buffer: buffer.nbytes).cast("B")
    largest[largest.nbytes // 2] ^= 16
