"""Copiers: how bytes get between pool pages and arena slots on one kind of device.

A copier moves one **run** (consecutive slots, consecutive pages) and returns the bytes to be checksummed. It knows
nothing of leases, threads or deadlines. Methods may be called from several copy threads at once, except fence(),
which belongs to the engine's thread.

Layout: a page and a block hold the same bytes, [kv_heads][layers][K,V][block_tokens][head_dim], so a run is one
copy; a slot may be longer than a block (4 KiB alignment), then it is one strided copy.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# uint8 [blocks, block_bytes], rows contiguous
Rows: TypeAlias = NDArray[np.uint8]


class Copier(Protocol):
    """What the worker asks of a device."""

    chunk_bytes: int  # a run is cut into pieces of about this size: the grain of threads, deadlines and cancels

    def attach(self, memory: NDArray[np.uint8]) -> None:
        """Make a newly attached arena fast to copy from and to, in place of the former one; may take long."""
        ...

    def detach(self) -> None:
        """Undo attach(); without one, nothing happens. Copies from and to the arena stay possible."""
        ...

    def fence(self) -> Any:
        """Everything queued on the device by the calling thread so far; copies given it start after that."""
        ...

    def to_pages(self, source: Rows, page: int, fence: Any) -> Rows:
        """Copy source[i] into page `page` + i. When it returns the copies are complete. Returns rows to verify."""
        ...

    def to_slots(self, page: int, target: Rows, fence: Any) -> Rows:
        """Copy page `page` + i into target[i]. When it returns the copies are complete. Returns rows to checksum."""
        ...


def page_rows(pool: Tensor) -> Tensor:
    """The pool [num_pages, ...] as uint8 [num_pages, page_bytes], sharing its memory; ValueError unless contiguous."""
    if not pool.is_contiguous():
        raise ValueError("the pool tensor must be contiguous")
    return pool.view(torch.uint8).view(pool.shape[0], -1)


class HostCopier:
    """The pool is in host memory: plain copies. The destination is what gets verified, while it is cache-hot."""

    chunk_bytes = 1 << 20

    def __init__(self, pool: Tensor) -> None:
        self._pages: Rows = page_rows(pool).numpy()

    def attach(self, memory: NDArray[np.uint8]) -> None:
        return

    def detach(self) -> None:
        return

    def fence(self) -> None:
        return None

    def to_pages(self, source: Rows, page: int, fence: Any) -> Rows:
        target = self._pages[page : page + len(source)]
        np.copyto(target, source)
        return target

    def to_slots(self, page: int, target: Rows, fence: Any) -> Rows:
        source = self._pages[page : page + len(target)]
        np.copyto(target, source)
        return source


class CudaCopier:
    """The pool is on a CUDA device: DMA on a side stream, ordered after the engine's stream by an event.

    The arena is registered as pinned once, so that the copies are asynchronous DMA without a bounce buffer. Device
    bytes cannot be hashed from here; the host side of the copy is checksummed, after the copy.
    """

    chunk_bytes = 32 << 20

    def __init__(self, pool: Tensor) -> None:
        self._rows = page_rows(pool)
        self._device = pool.device
        self._streams = threading.local()
        self._pinned: NDArray[np.uint8] | None = None  # held: it must not be unmapped while it is registered

    def attach(self, memory: NDArray[np.uint8]) -> None:
        self.detach()
        with torch.cuda.device(self._device):
            code = int(_cudart().cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))
        if code != 0:
            raise RuntimeError(f"cudaHostRegister of {memory.nbytes} bytes failed with CUDA error {code}")
        self._pinned = memory

    def detach(self) -> None:
        if self._pinned is None:
            return
        # DMA may still read the old mapping; a copy that starts later goes through pageable memory, slower but right.
        torch.cuda.synchronize(self._device)
        _cudart().cudaHostUnregister(self._pinned.ctypes.data)
        self._pinned = None

    def fence(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event

    def to_pages(self, source: Rows, page: int, fence: Any) -> Rows:
        self._copy(self._rows[page : page + len(source)], torch.from_numpy(source), fence)
        return source

    def to_slots(self, page: int, target: Rows, fence: Any) -> Rows:
        self._copy(torch.from_numpy(target), self._rows[page : page + len(target)], fence)
        return target

    def _copy(self, target: Tensor, source: Tensor, fence: torch.cuda.Event) -> None:
        stream = self._stream()
        with torch.cuda.stream(stream):
            stream.wait_event(fence)
            target.copy_(source, non_blocking=True)
            done = torch.cuda.Event(blocking=True)
            done.record(stream)
        done.synchronize()

    def _stream(self) -> torch.cuda.Stream:
        # One per copy thread: two chunks overlap, and one thread's wait is for its own copies only.
        stream: torch.cuda.Stream | None = getattr(self._streams, "stream", None)
        if stream is None:
            stream = torch.cuda.Stream(self._device)
            self._streams.stream = stream
        return stream


def _cudart() -> Any:
    runtime = torch.cuda.cudart()
    assert runtime is not None  # None only where torch has no CUDA, and then there is no pool on a CUDA device
    return runtime


def make_copier(pool: Tensor) -> Copier:
    """The copier for the device that the pool is on; ValueError for a device without one."""
    if pool.device.type == "cpu":
        return HostCopier(pool)
    if pool.device.type == "cuda":
        return CudaCopier(pool)
    raise ValueError(f"no copier for a pool on {pool.device.type}")
