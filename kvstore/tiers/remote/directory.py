"""Directory: objects as files on a shared file system.

    <root>/kvterrace-<version>/<fingerprint>/<first byte of key>/<key>   a block
    <root>/kvterrace-<version>/tmp/<random>                              being written

A file is written under a random name, synced, and renamed: two writers of one block are harmless, and a crash leaves
nothing visible that is torn. A file's mtime is its last use: those not used for longest leave when the cap is near.

The cap counts what is there, whoever wrote it: the files are counted at start and then now and then, and what this
process writes in between is added at once. So one writer never exceeds it; of several, each may exceed it by what the
others wrote since it last counted, which is why making room begins at HIGH of the cap.
"""

import contextlib
import errno
import heapq
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from ....proto import PAGE_BYTES
from ....proto.record import pages
from ..base import Usage
from .envelope import FORMAT
from .objects import Name, Trouble

HIGH, LOW = 0.9, 0.8  # of the cap: where making room begins, and where it ends
STALE_S = 3600.0  # a file that was being written so long ago never will be
TOUCH_S = 60.0  # a use is noted when the last noted one is so long ago
MOST_VICTIMS = 65536  # remembered during one count: some 16 MB

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_ABSENT = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)


class Directory:
    """root: made if need be; OSError when it cannot be. capacity_bytes: hard cap, see the module. Any thread."""

    def __init__(
        self,
        root: Path,
        capacity_bytes: int,
        *,
        wall: Callable[[], float] = time.time,
        touch_s: float = TOUCH_S,
        sync: Callable[[int], None] = os.fdatasync,
    ) -> None:
        self.text = f"file://{root}"
        self.evicted = 0
        self._top = root / FORMAT
        self._tmp = self._top / "tmp"
        self._capacity_bytes = capacity_bytes
        self._wall = wall
        self._touch_s = touch_s
        self._sync = sync
        self._lock = threading.Lock()  # of the figures
        self._sweep = threading.Lock()  # one count at a time
        self._used_bytes = 0
        self._blocks = 0
        self._counted = False

    def prepare(self) -> None:
        """Make the folders. OSError."""
        self._tmp.mkdir(mode=0o770, parents=True, exist_ok=True)

    def read(self, name: Name, head: memoryview, payload: memoryview) -> int | None:
        with _troubles():
            try:
                fd = os.open(self._path(name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError as error:
                if error.errno in _ABSENT:
                    return None
                if error.errno == errno.ELOOP:
                    return 0  # a link: foreign, whatever it leads to
                raise
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    return 0
                _read_all(fd, [head, payload])
                self._touch(fd, found.st_mtime, name)
                return found.st_size
            except OSError as error:
                if error.errno == errno.ESTALE:
                    return None
                raise
            finally:
                os.close(fd)

    def write(self, name: Name, head: bytes, payload: memoryview, *, replace: bool) -> bool:
        path, size = self._path(name), _on_disk(len(head) + len(payload))
        with _troubles():
            there = self._size(path)
            if there is not None and not replace and there == len(head) + len(payload):
                self._use(path, name)
                return False
            self._take(size)
            temporary = self._tmp / secrets.token_hex(16)
            try:
                self._write(temporary, [memoryview(head), payload])
                os.utime(temporary, (self._wall(), self._wall() - name.depth_s))
                self._rename(temporary, path)
            except BaseException:
                self._give(size)
                with contextlib.suppress(OSError):
                    temporary.unlink()
                raise
            if there is not None:
                self._give(_on_disk(there))
            return True

    def exists(self, name: Name) -> bool:
        with _troubles():
            return bool(self._size(self._path(name)))

    def remove(self, name: Name) -> bool:
        with _troubles():
            return self._unlink(self._path(name))

    def clear(self, fingerprint: bytes) -> int:
        with _troubles():
            space = self._top / fingerprint.hex()
            count = sum(self._unlink(Path(entry.path)) for entry in _files(space))
            with contextlib.suppress(OSError):  # somebody else writes to them: then they stay
                for folder in list(_folders(space)):
                    os.rmdir(folder.path)
                space.rmdir()
            return count

    def count(self) -> None:
        """Also makes room when the cap is near, and removes what writers that died left behind."""
        with _troubles(), self._sweep:
            self._sweep_temporaries()
            oldest = self._recount()
            if self._used_bytes > HIGH * self._capacity_bytes:
                self._evict(oldest, LOW * self._capacity_bytes)

    def usage(self) -> Usage:
        with self._lock:
            return Usage(self._capacity_bytes, self._used_bytes, self._blocks, self._used_bytes)

    def _path(self, name: Name) -> Path:
        return self._top / name.text

    def _size(self, path: Path) -> int | None:
        """Of a regular file; None = there is none, 0 = something else is there."""
        try:
            found = os.lstat(path)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def _touch(self, fd: int, mtime: float, name: Name) -> None:
        """Note the use, if the last one is not of just now. What cannot be noted is not a failure."""
        now = self._wall()
        if now - mtime > self._touch_s:
            with contextlib.suppress(OSError):
                os.utime(fd, (now, now - name.depth_s))

    def _use(self, path: Path, name: Name) -> None:
        with contextlib.suppress(OSError):
            os.utime(path, (self._wall(), self._wall() - name.depth_s), follow_symlinks=False)

    def _write(self, path: Path, parts: Sequence[memoryview]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(path, flags, 0o660)
        except FileNotFoundError:
            self.prepare()
            fd = os.open(path, flags, 0o660)
        try:
            left = [part for part in parts if len(part)]
            while left:
                done = os.writev(fd, left)
                left = _behind(left, done)
            self._sync(fd)
        finally:
            os.close(fd)

    def _rename(self, temporary: Path, path: Path) -> None:
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o770, parents=True, exist_ok=True)
            os.replace(temporary, path)

    def _unlink(self, path: Path) -> bool:
        size = self._size(path)
        try:
            path.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return False
        self._give(_on_disk(size or 0))
        return True

    def _take(self, size: int) -> None:
        """Count a block that is about to be written; make room if it takes any."""
        if size > self._capacity_bytes:
            raise Trouble("too_large", f"{size} bytes are more than the cap of {self._capacity_bytes}")
        if self._taken(size):
            return
        with self._sweep:
            if self._taken(size):
                return
            oldest = self._recount()
            if self._taken(size):
                return
            self._evict(oldest, min(LOW * self._capacity_bytes, self._capacity_bytes - size))
            if not self._taken(size):
                raise Trouble("full", "what is there could not be made to leave")

    def _taken(self, size: int) -> bool:
        with self._lock:
            if not self._counted or self._used_bytes + size > self._capacity_bytes:
                return False
            self._used_bytes += size
            self._blocks += 1
            return True

    def _give(self, size: int) -> None:
        """A block is gone, or was not written after all."""
        with self._lock:
            self._used_bytes = max(self._used_bytes - size, 0)
            self._blocks = max(self._blocks - 1, 0)

    def _recount(self) -> list[tuple[float, int, str]]:
        """Count all files; what _look says of the oldest."""
        before_bytes, before_blocks = self._used_bytes, self._blocks
        used, blocks, oldest = self._look()
        with self._lock:  # what was written meanwhile may have been counted, or not: it is counted once more
            if self._counted:
                used += max(self._used_bytes - before_bytes, 0)
                blocks += max(self._blocks - before_blocks, 0)
            self._used_bytes, self._blocks, self._counted = used, blocks, True
        return oldest

    def _evict(self, oldest: list[tuple[float, int, str]], goal_bytes: float) -> None:
        """Remove those not used for longest until no more than that is left."""
        for _, size, path in sorted(oldest, reverse=True):
            if self._used_bytes <= goal_bytes:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
                self.evicted += 1
                self._give(size)

    def _look(self) -> tuple[int, int, list[tuple[float, int, str]]]:
        """(bytes, blocks, the files not used for longest as (-mtime, bytes, path))."""
        used = blocks = 0
        oldest: list[tuple[float, int, str]] = []
        for folder in _folders(self._top):
            if len(folder.name) != 64:
                continue
            for entry in _files(Path(folder.path)):
                try:
                    found = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                size = _on_disk(found.st_size)
                used += size
                blocks += 1
                item = (-found.st_mtime, size, entry.path)
                if len(oldest) < MOST_VICTIMS:
                    heapq.heappush(oldest, item)
                elif item > oldest[0]:
                    heapq.heapreplace(oldest, item)
        return used, blocks, oldest

    def _sweep_temporaries(self) -> None:
        now = self._wall()
        for entry in _entries(self._tmp):
            with contextlib.suppress(FileNotFoundError):
                if now - entry.stat(follow_symlinks=False).st_mtime > STALE_S:
                    os.unlink(entry.path)


def _on_disk(size: int) -> int:
    return pages(size) * PAGE_BYTES


def _entries(folder: Path) -> Iterator["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except OSError as error:
        if error.errno not in _ABSENT:
            raise


def _folders(folder: Path) -> Iterator["os.DirEntry[str]"]:
    return (entry for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))


def _files(space: Path) -> Iterator["os.DirEntry[str]"]:
    """The blocks of a namespace."""
    for folder in _folders(space):
        yield from (entry for entry in _entries(Path(folder.path)) if entry.is_file(follow_symlinks=False))


def _behind(parts: Sequence[memoryview], done: int) -> list[memoryview]:
    """What is left of them after so many bytes."""
    left: list[memoryview] = []
    for part in parts:
        if done < len(part):
            left.append(part[done:])
        done = max(done - len(part), 0)
    return left


def _read_all(fd: int, parts: Sequence[memoryview]) -> None:
    """As far as the file reaches."""
    left, at = list(parts), 0
    while left:
        got = os.preadv(fd, left, at)
        if not got:
            return
        at += got
        left = _behind(left, got)


@contextlib.contextmanager
def _troubles() -> Generator[None]:
    try:
        yield
    except OSError as error:
        said = f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror)
        if error.errno in _DENIED:
            raise Trouble("denied", said, sure=True) from None
        if error.errno in _NO_SPACE:
            raise Trouble("no_space", said, sure=True) from None
        raise Trouble("io", said) from None
