"""The arena: the DRAM tier's bytes, one shared-memory file that an owner makes and engines on the host map.

File, little-endian:

    page 0      header: magic 8s, version u32, reserved u32, boot id 16s, capacity u64, generation table offset u64,
                data offset u64
    then        generation table: uint32 per data page, rounded up to whole pages
    then        data: `capacity` bytes, cut into pages of 4096; a slot is a run of pages, named by its first page

The owner alone writes header and generations. Everyone writes data, into slots under a write lease. The file is
allocated when it is made (a sparse one would kill its writer with SIGBUS once memory runs out), locked by its owner
for as long as that lives, and unlinked when the owner closes; mappings stay valid until their last view is gone.
A slot's generation moves when the slot is freed: who copied from a slot looks at it afterwards.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import secrets
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..proto import PAGE_BYTES
from .errors import ArenaError
from .memory import Prefault, check_room

log = logging.getLogger(__name__)

MAGIC = b"KVTARENA"
VERSION = 1
DEFAULT_DIRECTORY = Path("/dev/shm")
_HEADER = struct.Struct("<8sII16sQQQ")
_CREATE_ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class _Geometry:
    boot_id: bytes
    capacity_bytes: int
    generations_at: int
    data_at: int

    @classmethod
    def of(cls, boot_id: bytes, capacity_bytes: int) -> _Geometry:
        table = -(-(capacity_bytes // PAGE_BYTES * 4) // PAGE_BYTES) * PAGE_BYTES
        return cls(boot_id, capacity_bytes, PAGE_BYTES, PAGE_BYTES + table)

    @property
    def file_bytes(self) -> int:
        return self.data_at + self.capacity_bytes

    def pack(self) -> bytes:
        return _HEADER.pack(MAGIC, VERSION, 0, self.boot_id, self.capacity_bytes, self.generations_at, self.data_at)

    @classmethod
    def read(cls, header: bytes, file_bytes: int, where: str) -> _Geometry:
        if len(header) < _HEADER.size:
            raise ArenaError(f"{where} is too short to be an arena")
        magic, version, _, boot_id, capacity, generations_at, data_at = _HEADER.unpack_from(header)
        if magic != MAGIC:
            raise ArenaError(f"{where} is not an arena (it begins with {magic!r})")
        if version != VERSION:
            raise ArenaError(f"{where} is an arena of version {version}; this program reads version {VERSION}")
        found = cls(boot_id, capacity, generations_at, data_at)
        if found != cls.of(boot_id, capacity) or found.file_bytes != file_bytes:
            raise ArenaError(f"{where} has {file_bytes} bytes, which is not what its header says")
        return found


class ArenaView:
    """Someone's window on an arena, for slots of one size. numpy only; safe to use from several threads.

    slot_bytes: bytes of a slot; block_bytes: those of them that are payload. boot_id: 16 bytes, another for each
    arena ever made.
    """

    def __init__(self, mapping: mmap.mmap, geometry: _Geometry, block_bytes: int, slot_bytes: int) -> None:
        self.boot_id = geometry.boot_id
        self.block_bytes = block_bytes
        self.slot_bytes = slot_bytes
        self._mapping = mapping
        self._generations, self._data = _arrays(mapping, geometry)
        self._prefault: Prefault | None = None

    @classmethod
    def attach(
        cls,
        path: str | Path,
        *,
        block_bytes: int,
        slot_bytes: int,
        boot_id: bytes | None = None,
        prefault: bool = True,
    ) -> ArenaView:
        """Map the arena at `path`. ArenaError: no such file, not an arena, or not the one with `boot_id`.

        prefault: fill the page table in the background, so that first copies are not slowed by page faults.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise ArenaError(f"the arena {path} cannot be opened: {error.strerror}") from error
        try:
            size = os.fstat(fd).st_size
            geometry = _Geometry.read(os.pread(fd, _HEADER.size, 0), size, str(path))
            if boot_id is not None and geometry.boot_id != boot_id:
                raise ArenaError(f"{path} belongs to another start of the store")
            mapping = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        view = cls(mapping, geometry, block_bytes, slot_bytes)
        if prefault:
            view._prefault = Prefault(view.data)
        return view

    @property
    def data(self) -> NDArray[np.uint8]:
        """All data bytes, uint8 [capacity_bytes]; for registering the whole with a device."""
        return self._data

    def run(self, slot: int, n: int) -> NDArray[np.uint8]:
        """uint8 [n * slot_bytes] of n slots that lie one after another. ArenaError outside of the arena."""
        data, start = self._data, slot * PAGE_BYTES  # read once: another thread may close() meanwhile
        end = start + n * self.slot_bytes
        if slot < 0 or n < 0 or end > len(data):
            raise ArenaError(f"{n} slots from page {slot} are not all within the arena")
        return data[start:end]

    def block(self, slot: int) -> NDArray[np.uint8]:
        """uint8 [slot_bytes] of one slot; its first block_bytes are the block."""
        return self.run(slot, 1)

    def generation(self, slot: int) -> int:
        """The slot's generation now. ArenaError outside of the arena."""
        generations = self._generations
        if not 0 <= slot < len(generations):
            raise ArenaError(f"page {slot} is not within the arena")
        return int(generations[slot])

    def wait_prefault(self, timeout_s: float) -> bool:
        """Wait for the page table to be filled; True when it is (or nobody was asked to fill it)."""
        return self._prefault is None or self._prefault.wait(timeout_s)

    def close(self) -> None:
        """Let go of the mapping. Arrays handed out stay valid: the memory goes with the last of them."""
        if self._prefault is not None:
            self._prefault.close()
        self._data = self._data[:0].copy()
        self._generations = self._generations[:0].copy()
        with suppress(BufferError):  # someone still holds an array
            self._mapping.close()


class Arena:
    """The owner's side of an arena. Made whole by create() or anonymous(); used from one thread.

    path is None for anonymous memory, which only this process sees. generations: uint32 [pages], the live table.
    """

    def __init__(self, mapping: mmap.mmap, geometry: _Geometry, path: Path | None, lock_fd: int | None) -> None:
        self.path = path
        self.boot_id = geometry.boot_id
        self.capacity_bytes = geometry.capacity_bytes
        self.pages = geometry.capacity_bytes // PAGE_BYTES
        self._geometry = geometry
        self._mapping = mapping
        self._lock_fd = lock_fd
        self.generations, self._data = _arrays(mapping, geometry)
        self._prefault: Prefault | None = None

    @classmethod
    def create(cls, capacity_bytes: int, *, directory: Path = DEFAULT_DIRECTORY) -> Arena:
        """Make and allocate the file, after removing what dead owners left in `directory`.

        capacity_bytes is rounded down to whole pages. ArenaError: no room there (with what to do), or not writable.
        """
        remove_stale(directory)
        geometry = _Geometry.of(secrets.token_bytes(16), _whole_pages(capacity_bytes))
        check_room(directory, geometry.file_bytes)
        path, fd = _create_locked(directory, geometry.boot_id)
        try:
            os.posix_fallocate(fd, 0, geometry.file_bytes)
            os.pwrite(fd, geometry.pack(), 0)
            mapping = mmap.mmap(fd, geometry.file_bytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise ArenaError(
                f"{geometry.file_bytes} bytes for the arena could not be allocated in {directory}: {error.strerror}"
            ) from error
        return cls(mapping, geometry, path, fd)

    @classmethod
    def anonymous(cls, capacity_bytes: int) -> Arena:
        """An arena in this process's own memory. ArenaError when the system refuses it."""
        geometry = _Geometry.of(secrets.token_bytes(16), _whole_pages(capacity_bytes))
        check_room(None, geometry.file_bytes)
        try:
            mapping = mmap.mmap(-1, geometry.file_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise ArenaError(f"{geometry.file_bytes} bytes of memory for the arena: {error.strerror}") from error
        mapping[: _HEADER.size] = geometry.pack()
        return cls(mapping, geometry, None, None)

    def view(self, block_bytes: int, slot_bytes: int) -> ArenaView:
        """A view through the owner's own mapping. Its close() leaves the mapping to the owner."""
        return ArenaView(self._mapping, self._geometry, block_bytes, slot_bytes)

    def prefault(self) -> None:
        """Begin to fill the page table in the background; for owners that copy blocks themselves."""
        if self._prefault is None:
            self._prefault = Prefault(self._data)

    def free_slots(self, slots: NDArray[np.int64]) -> None:
        """Move the generations on: from now on, copies from these slots are void."""
        self.generations[slots] += 1  # uint32 wraps by itself

    def close(self) -> None:
        """Unlink the file and let go of it. Views that live keep their memory. Closing twice is harmless."""
        if self._prefault is not None:
            self._prefault.close()
        self.generations = self.generations[:0].copy()
        self._data = self._data[:0].copy()
        with suppress(BufferError):  # a view is alive
            self._mapping.close()
        if self.path is not None and self._lock_fd is not None:
            self.path.unlink(missing_ok=True)
            os.close(self._lock_fd)
            self._lock_fd = None


def remove_stale(directory: Path) -> list[Path]:
    """Unlink arenas in `directory` whose owner is dead (nobody holds the lock); those that were."""
    removed: list[Path] = []
    for path in sorted(directory.glob("kvterrace-*.arena")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or gone already
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()
            removed.append(path)
            log.info("removed the arena %s, which a dead store left behind", path)
        except OSError:
            continue  # its owner lives
        finally:
            os.close(fd)
    return removed


def arena_name(boot_id: bytes) -> str:
    """Of the file, in whatever directory it lies."""
    return f"kvterrace-{boot_id.hex()}.arena"


def _whole_pages(capacity_bytes: int) -> int:
    if capacity_bytes < PAGE_BYTES:
        raise ArenaError(f"an arena of {capacity_bytes} bytes is smaller than one page of {PAGE_BYTES}")
    return capacity_bytes // PAGE_BYTES * PAGE_BYTES


def _create_locked(directory: Path, boot_id: bytes) -> tuple[Path, int]:
    """An empty file that is ours: a store starting at this moment may take it for stale before we lock it."""
    path = directory / arena_name(boot_id)
    for _ in range(_CREATE_ATTEMPTS):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ArenaError(f"the arena {path} cannot be made: {error.strerror}") from error
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(fd).st_ino:
                return path, fd
        os.close(fd)
        path.unlink(missing_ok=True)
    raise ArenaError(f"the arena {path} was removed again and again while it was made")


def _arrays(mapping: mmap.mmap, geometry: _Geometry) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    pages = geometry.capacity_bytes // PAGE_BYTES
    generations = np.frombuffer(mapping, np.uint32, pages, geometry.generations_at)
    return generations, np.frombuffer(mapping, np.uint8, geometry.capacity_bytes, geometry.data_at)
