"""Files: everything the NVMe tier asks of an operating system, so that tests can put a failing disk in its place.

Every call blocks and may raise OSError, whose errno says what is wrong; none raises anything else for a disk's sake.
Calls come from several threads at once; two never write the same bytes. A handle is an int and belongs to the caller,
who closes it.
"""

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

Access: TypeAlias = Literal["create", "read", "write"]

_FLAGS: dict[Access, int] = {
    "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "read": os.O_RDONLY,
    "write": os.O_RDWR,
}


class Files(Protocol):
    """See the module."""

    def mkdir(self, path: Path) -> None:
        """Make a directory and those above it; one that is there is fine."""
        ...

    def listdir(self, path: Path) -> list[str]: ...

    def lock(self, path: Path) -> int:
        """An exclusive lock that ends with the process or with close(). BlockingIOError: someone else has it."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Bytes that an ordinary user may still write to the file system of `path`."""
        ...

    def open_segment(self, path: Path, access: Access, *, direct: bool) -> int:
        """create: read and write, FileExistsError when it is there; write: read and write one that is there.

        direct: around the page cache; buffers, lengths and offsets are then multiples of 4096. A file system that
        does not offer it raises EINVAL.
        """
        ...

    def close(self, handle: int) -> None: ...

    def size(self, handle: int) -> int: ...

    def fallocate(self, handle: int, size: int) -> None:
        """Make the file `size` bytes long and take the space for them now. EOPNOTSUPP or EINVAL: not offered here."""
        ...

    def truncate(self, handle: int, size: int) -> None: ...

    def preadv(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Fill the buffers (contiguous) in order; how many bytes came, which may be fewer. 0 = the file ends here."""
        ...

    def pwritev(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Write the buffers in order; how many bytes were taken, which may be fewer."""
        ...

    def fdatasync(self, handle: int) -> None: ...

    def sync_directory(self, path: Path) -> None:
        """What was created, renamed or unlinked in it survives a power cut from now on."""
        ...

    def unlink(self, path: Path) -> None: ...

    def rename(self, old: Path, new: Path) -> None:
        """Atomic; replaces `new`."""
        ...


class OsFiles:
    """The real ones."""

    def mkdir(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def listdir(self, path: Path) -> list[str]:
        return os.listdir(path)

    def lock(self, path: Path) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            raise
        return handle

    def free_bytes(self, path: Path) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def open_segment(self, path: Path, access: Access, *, direct: bool) -> int:
        return os.open(path, _FLAGS[access] | os.O_CLOEXEC | (os.O_DIRECT if direct else 0), 0o600)

    def close(self, handle: int) -> None:
        os.close(handle)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def fallocate(self, handle: int, size: int) -> None:
        os.posix_fallocate(handle, 0, size)

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def preadv(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(handle, buffers, offset)

    def pwritev(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(handle, buffers, offset)

    def fdatasync(self, handle: int) -> None:
        os.fdatasync(handle)

    def sync_directory(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)
