"""A disk in memory behind the tier's Files, harsher than a real one: it forgets what POSIX lets it forget.

The disk outlives its mounts. A mount is what a process has: `crash()` ends it as kill -9 does (what was written stays,
handles and locks go), `power_cut()` as the plug does: every page written since its file's last fdatasync is old, new or
torn, sizes likewise, and of the names that were made, changed or removed since the last sync_directory only a beginning
of that history remains. Calls on a mount that has ended raise ENODEV, as late writes of a dead process never arrive.

Direct handles insist on alignment. peak_bytes is the most that was ever allocated, open but unlinked files included;
written_by_day counts what was written on each `day()`.
"""

import errno
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

PAGE = 4096
SECTOR = 512


@dataclass(eq=False)
class Inode:
    """data: what is read now; durable: what the last fdatasync left; dirty: pages written since."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    dirty: set[int] = field(default_factory=set)
    pages: set[int] = field(default_factory=set)  # allocated
    links: int = 0
    opens: int = 0
    locked_by: object = None


@dataclass(eq=False)
class Handle:
    inode: Inode
    mount: "Mount"
    direct: bool
    writable: bool


class MemoryDisk:
    """capacity_bytes: when that much is allocated, ENOSPC. direct: whether O_DIRECT is offered."""

    def __init__(self, capacity_bytes: int = 1 << 40, *, direct: bool = True) -> None:
        self.capacity_bytes = capacity_bytes
        self.direct = direct
        self.peak_bytes = 0
        self.day: Callable[[], int] = lambda: 0
        self.written_by_day: Counter[int] = Counter()
        self.lock = threading.RLock()
        self.folders: set[Path] = set()
        self.names: dict[Path, Inode] = {}
        self.durable_names: dict[Path, Inode] = {}
        self.history: list[tuple[Path, Inode | None]] = []  # name operations since their directory was synced
        self.inodes: list[Inode] = []

    @property
    def used_bytes(self) -> int:
        with self.lock:
            return sum(len(inode.pages) for inode in self.inodes if inode.links or inode.opens) * PAGE

    def mount(self) -> "Mount":
        return Mount(self)

    def files(self) -> dict[Path, Inode]:
        """The files by name, for a test that damages them."""
        with self.lock:
            return dict(self.names)

    def crash(self, mount: "Mount") -> None:
        """The process of this mount is gone."""
        with self.lock:
            mount.alive = False
            for handle in list(mount.handles):
                mount.drop(handle)

    def power_cut(self, mount: "Mount", rng: random.Random) -> None:
        """The process is gone, and so is whatever the disk had not been told to keep."""
        with self.lock:
            self.crash(mount)
            names = dict(self.durable_names)
            for path, inode in self.history[: rng.randint(0, len(self.history))]:
                if inode is None:
                    names.pop(path, None)
                else:
                    names[path] = inode
            self.history.clear()
            self.names, self.durable_names = names, dict(names)
            for inode in self.inodes:
                _lose(inode, rng)
                inode.links = sum(each is inode for each in names.values())
            self.collect()

    def collect(self) -> None:
        """Note the peak, then forget files without name and handle (a name that a cut may bring back is a name)."""
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        kept = {id(inode) for inode in self.durable_names.values()} | {id(inode) for _, inode in self.history}
        self.inodes = [inode for inode in self.inodes if inode.links or inode.opens or id(inode) in kept]


def _lose(inode: Inode, rng: random.Random) -> None:
    """Each dirty page is old, new, or torn at a sector; the size is the old or the new one."""
    old, new = inode.durable, bytes(inode.data)
    size = rng.choice((len(old), len(new)))
    kept = bytearray(new[:size].ljust(size, b"\0"))
    for page in inode.dirty:
        start = page * PAGE
        if start >= size:
            continue
        torn = start + rng.choice((0, PAGE, rng.randrange(PAGE // SECTOR) * SECTOR))
        end = min(start + PAGE, size)
        kept[torn:end] = old[torn:end].ljust(max(0, end - torn), b"\0")
    inode.data, inode.durable = kept, bytes(kept)
    inode.dirty.clear()
    inode.pages = {page for page in inode.pages if page * PAGE < size}


class Mount:
    """A process's view of the disk: an implementation of the tier's Files."""

    def __init__(self, disk: MemoryDisk) -> None:
        self.alive = True
        self.handles: dict[int, Handle] = {}
        self._disk = disk
        self._next = 1000

    def mkdir(self, path: Path) -> None:
        with self._entered() as disk:
            disk.folders.update((path, *path.parents))

    def listdir(self, path: Path) -> list[str]:
        with self._entered() as disk:
            if path not in disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
            here = (each for each in (*disk.names, *disk.folders) if each != path)
            return [each.name for each in here if each.parent == path]

    def lock(self, path: Path) -> int:
        with self._entered() as disk:
            inode = disk.names.get(path) or self._create(path)
            if inode.locked_by is not None:
                raise BlockingIOError(errno.EAGAIN, "locked", str(path))
            handle = self._handle(inode, direct=False, writable=True)
            inode.locked_by = self.handles[handle]
            return handle

    def free_bytes(self, path: Path) -> int:
        with self._entered() as disk:
            return max(0, disk.capacity_bytes - disk.used_bytes)

    def open_segment(self, path: Path, access: str, *, direct: bool) -> int:
        with self._entered() as disk:
            if direct and not disk.direct:
                raise OSError(errno.EINVAL, "no O_DIRECT here", str(path))
            inode = disk.names.get(path)
            if access == "create":
                if inode is not None:
                    raise FileExistsError(errno.EEXIST, "exists", str(path))
                inode = self._create(path)
            if inode is None:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            return self._handle(inode, direct=direct, writable=access != "read")

    def close(self, handle: int) -> None:
        with self._entered() as disk:
            self.drop(handle)
            disk.collect()

    def size(self, handle: int) -> int:
        with self._entered():
            return len(self._of(handle).inode.data)

    def fallocate(self, handle: int, size: int) -> None:
        with self._entered():
            inode = self._of(handle).inode
            self._take(inode, set(range(-(-size // PAGE))))
            inode.data.extend(bytes(max(0, size - len(inode.data))))

    def truncate(self, handle: int, size: int) -> None:
        with self._entered():
            inode = self._of(handle).inode
            del inode.data[size:]
            inode.data.extend(bytes(size - len(inode.data)))
            inode.pages = {page for page in inode.pages if page * PAGE < size}
            inode.dirty = {page for page in inode.dirty if page * PAGE < size}

    def preadv(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        with self._entered():
            of = self._of(handle)
            self._check(of, buffers, offset)
            done = 0
            for buffer in buffers:
                part = of.inode.data[offset + done : offset + done + buffer.nbytes]
                buffer.cast("B")[: len(part)] = part
                done += len(part)
                if len(part) < buffer.nbytes:
                    break
            return done

    def pwritev(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        with self._entered():
            of = self._of(handle)
            assert of.writable
            self._check(of, buffers, offset)
            content = b"".join(buffer.tobytes() for buffer in buffers)
            end = offset + len(content)
            pages = set(range(offset // PAGE, -(-end // PAGE)))
            self._take(of.inode, pages)
            of.inode.data.extend(bytes(max(0, end - len(of.inode.data))))
            of.inode.data[offset:end] = content
            of.inode.dirty |= pages
            self._disk.written_by_day[self._disk.day()] += len(content)
            return len(content)

    def fdatasync(self, handle: int) -> None:
        with self._entered():
            inode = self._of(handle).inode
            inode.durable = bytes(inode.data)
            inode.dirty.clear()

    def sync_directory(self, path: Path) -> None:
        with self._entered() as disk:
            if path not in disk.folders:
                raise FileNotFoundError(errno.ENOENT, "no such directory", str(path))
            disk.durable_names = {name: inode for name, inode in disk.durable_names.items() if name.parent != path}
            disk.durable_names |= {name: inode for name, inode in disk.names.items() if name.parent == path}
            disk.history = [each for each in disk.history if each[0].parent != path]
            disk.collect()

    def unlink(self, path: Path) -> None:
        with self._entered() as disk:
            if path not in disk.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            disk.names.pop(path).links -= 1
            disk.history.append((path, None))
            disk.collect()

    def rename(self, old: Path, new: Path) -> None:
        with self._entered() as disk:
            if old not in disk.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(old))
            replaced = disk.names.get(new)
            if replaced is not None:
                replaced.links -= 1
            disk.names[new] = disk.names.pop(old)
            disk.history += [(new, disk.names[new]), (old, None)]
            disk.collect()

    def drop(self, handle: int) -> None:
        """Forget a handle and the lock that it held."""
        of = self.handles.pop(handle)
        of.inode.opens -= 1
        if of.inode.locked_by is of:
            of.inode.locked_by = None

    def _entered(self) -> "_Entered":
        return _Entered(self, self._disk)

    def _create(self, path: Path) -> Inode:
        disk = self._disk
        if path.parent not in disk.folders:
            raise FileNotFoundError(errno.ENOENT, "no such directory", str(path.parent))
        inode = Inode(links=1)
        disk.inodes.append(inode)
        disk.names[path] = inode
        disk.history.append((path, inode))
        return inode

    def _handle(self, inode: Inode, *, direct: bool, writable: bool) -> int:
        self._next += 1
        inode.opens += 1
        self.handles[self._next] = Handle(inode, self, direct, writable)
        return self._next

    def _of(self, handle: int) -> Handle:
        found = self.handles.get(handle)
        if found is None:
            raise OSError(errno.EBADF, "closed")
        return found

    def _take(self, inode: Inode, pages: set[int]) -> None:
        more = len(pages - inode.pages) * PAGE
        if self._disk.used_bytes + more > self._disk.capacity_bytes:
            raise OSError(errno.ENOSPC, "no space left")
        inode.pages |= pages
        self._disk.peak_bytes = max(self._disk.peak_bytes, self._disk.used_bytes)

    @staticmethod
    def _check(of: Handle, buffers: Sequence[memoryview], offset: int) -> None:
        if not of.direct:
            return
        for buffer in buffers:
            address = np.frombuffer(buffer, np.uint8).__array_interface__["data"][0]
            if address % PAGE or buffer.nbytes % PAGE or offset % PAGE:
                raise OSError(errno.EINVAL, f"unaligned: {address=} {buffer.nbytes=} {offset=}")


class _Entered:
    """Under the disk's lock, on a mount that is alive."""

    def __init__(self, mount: Mount, disk: MemoryDisk) -> None:
        self._mount = mount
        self._disk = disk

    def __enter__(self) -> MemoryDisk:
        self._disk.lock.acquire()
        if not self._mount.alive:
            self._disk.lock.release()
            raise OSError(errno.ENODEV, "the process that mounted this is dead")
        return self._disk

    def __exit__(self, *_: object) -> None:
        self._disk.lock.release()
