"""Ownership of a Unix socket's path: one live server a path, whatever the last one left behind.

A lock file beside the socket says who lives: the kernel drops the lock when its holder dies, however it died. A socket
that answers although nobody holds the lock belongs to another program, and is left alone.
"""

import contextlib
import fcntl
import os
import socket
import stat
from pathlib import Path
from types import TracebackType

from ..errors import KvterraceError

PROBE_S = 0.5


class AddressInUse(KvterraceError):
    """The path belongs to another program, or holds something that is not a socket."""


class SocketPath:
    """Holds `path` from construction to `close`. AddressInUse when it is another's; the path is free to bind after.
    option: what set it, for messages."""

    def __init__(self, path: Path, option: str = "--uds") -> None:
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_directory(path.parent, option)
        self._lock_path = path.with_name(path.name + ".lock")
        self._lock = _take_lock(self._lock_path, path, option)
        try:
            _clear_stale(path, option)
        except BaseException:
            self._drop_lock()
            raise

    def close(self) -> None:
        """Remove the socket and give the path up."""
        self.path.unlink(missing_ok=True)
        self._drop_lock()

    def _drop_lock(self) -> None:
        self._lock_path.unlink(missing_ok=True)  # while locked: whoever waits on this file sees that it is gone
        os.close(self._lock)

    def __enter__(self) -> "SocketPath":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_directory(directory: Path, option: str) -> None:
    """Whoever may rename files in it could put a socket of their own in our place."""
    found = directory.stat()
    loose = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if loose or found.st_uid not in (0, os.geteuid()):
        raise AddressInUse(f"other users may write to {directory}; choose a {option} in a directory of your own")


def _take_lock(lock_path: Path, path: Path, option: str) -> int:
    """File descriptor of the locked file that `lock_path` names now."""
    while True:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise AddressInUse(f"another kvterrace serve owns {path}; stop it or choose another {option}") from None
        # The last owner may have removed the file between our open and our lock: then what we locked is nameless.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(lock_path)):
                return lock
        os.close(lock)


def _clear_stale(path: Path, option: str) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise AddressInUse(f"{path} exists and is not a socket; remove it or choose another {option}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # it takes connections slowly: somebody is there
    raise AddressInUse(f"another program answers on {path}; stop it or choose another {option}")
