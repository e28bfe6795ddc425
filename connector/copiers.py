"""Copiers: how bytes get between pool pages and arena slots on one kind of device.

A copier moves one **run** (consecutive slots, consecutive pages) and returns the bytes to be checksummed. It knows
nothing of leases, threads or deadlines. Methods may be called from several copy threads at once, except fence(),
which belongs to the engine's thread.

Layout: a page and a block hold the same bytes, [kv_heads][layers][K,V][block_tokens][head_dim], so a run is one
copy; a slot may be longer than a block (4 KiB alignment), then it is one strided copy. Where the layout names a lossy
codec, it stands between the two, on the side of the pages: what is checksummed is always what lies in the slots.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels import BlockCodec
from ..proto import BlockLayout

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


class HostCodecCopier:
    """The pool is in host memory, blocks are coded. Verified is the private copy that pages are decoded from."""

    chunk_bytes = 1 << 20

    def __init__(self, pool: Tensor, codec: BlockCodec) -> None:
        page_rows(pool)
        self._pool = pool
        self._codec = codec
        self._rooms = threading.local()

    def attach(self, memory: NDArray[np.uint8]) -> None:
        return

    def detach(self) -> None:
        return

    def fence(self) -> None:
        return None

    def to_pages(self, source: Rows, page: int, fence: Any) -> Rows:
        room = self._room(len(source))
        np.copyto(room, source)
        self._codec.decode(torch.from_numpy(room), self._pool[page : page + len(source)])
        return room

    def to_slots(self, page: int, target: Rows, fence: Any) -> Rows:
        room = self._room(len(target))
        self._codec.encode(self._pool[page : page + len(target)], torch.from_numpy(room))
        np.copyto(target, room)
        return room

    def _room(self, blocks: int) -> Rows:
        # A thread's own, good until its next copy: at most a chunk or a block, whichever is larger.
        room: Rows | None = getattr(self._rooms, "room", None)
        if room is None or len(room) < blocks:
            room = np.empty((blocks, self._codec.block_bytes), dtype=np.uint8)
            self._rooms.room = room
        return room[:blocks]


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
        with self._ordered(fence):
            dma(self._rows[page : page + len(source)], torch.from_numpy(source))
        return source

    def to_slots(self, page: int, target: Rows, fence: Any) -> Rows:
        with self._ordered(fence):
            dma(torch.from_numpy(target), self._rows[page : page + len(target)])
        return target

    @contextmanager
    def _ordered(self, fence: torch.cuda.Event) -> Iterator[None]:
        """What is queued inside runs on the thread's own stream, after the fence, and has run when this ends."""
        stream, done = self._stream(), torch.cuda.Event(blocking=True)
        with torch.cuda.stream(stream):
            stream.wait_event(fence)
            try:
                yield
            finally:  # nothing goes on behind the back of whoever is told that it failed
                done.record(stream)
                done.synchronize()

    def _stream(self) -> torch.cuda.Stream:
        # One per copy thread: two chunks overlap, and one thread's wait is for its own copies only.
        stream: torch.cuda.Stream | None = getattr(self._streams, "stream", None)
        if stream is None:
            stream = torch.cuda.Stream(self._device)
            self._streams.stream = stream
        return stream


class CudaCodecCopier(CudaCopier):
    """Blocks are coded on the device, so that only their coded bytes cross the bus."""

    def __init__(self, pool: Tensor, codec: BlockCodec) -> None:
        super().__init__(pool)
        self._pool = pool
        self._codec = codec

    def to_pages(self, source: Rows, page: int, fence: Any) -> Rows:
        with self._ordered(fence):
            room = self._room(len(source))
            dma(room, torch.from_numpy(source))
            self._codec.decode(room, self._pool[page : page + len(source)])
        return source

    def to_slots(self, page: int, target: Rows, fence: Any) -> Rows:
        with self._ordered(fence):
            room = self._room(len(target))
            self._codec.encode(self._pool[page : page + len(target)], room)
            dma(torch.from_numpy(target), room)
        return target

    def _room(self, blocks: int) -> Tensor:
        # Of the current stream's memory; _ordered() waits before it can be given to anybody else.
        return torch.empty((blocks, self._codec.block_bytes), dtype=torch.uint8, device=self._device)


def dma(target: Tensor, source: Tensor) -> None:
    """Queue the copy of rows. Rows with gaps (slots longer than blocks) go one by one: as a whole they would be packed
    into pageable memory first, and wait there."""
    if target.is_contiguous() and source.is_contiguous():
        target.copy_(source, non_blocking=True)
        return
    for to, from_ in zip(target, source, strict=True):
        to.copy_(from_, non_blocking=True)


def _cudart() -> Any:
    runtime = torch.cuda.cudart()
    assert runtime is not None  # None only where torch has no CUDA, and then there is no pool on a CUDA device
    return runtime


def make_codec(layout: BlockLayout) -> BlockCodec | None:
    """What stands between pages and blocks of this layout, if anything does."""
    return BlockCodec(layout.codec, layout.shape, getattr(torch, layout.element)) if layout.codec else None


def make_copier(pool: Tensor, layout: BlockLayout) -> Copier:
    """The copier for the device that the pool is on; ValueError for a device without one."""
    codec = make_codec(layout)
    if pool.device.type == "cpu":
        return HostCopier(pool) if codec is None else HostCodecCopier(pool, codec)
    if pool.device.type == "cuda":
        return CudaCopier(pool) if codec is None else CudaCodecCopier(pool, codec)
    raise ValueError(f"no copier for a pool on {pool.device.type}")
