"""Files of secrets: read when their mode allows it, and read again once they have changed."""

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import ConfigError

log = logging.getLogger(__name__)

MAX_FILE_BYTES = 1 << 20
LOOK_S = 1.0

T = TypeVar("T")


def read_file(path: Path, option: str, *, secret: bool = False) -> bytes:
    """The bytes of a file that `option` names. ConfigError: it cannot be read, others may write it, or, when it is a
    secret, others may read it. Its group may: that is how secrets are mounted in containers."""
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"{option}: {path} is larger than {MAX_FILE_BYTES} bytes")
    if found.st_mode & stat.S_IWOTH or (secret and found.st_mode & stat.S_IROTH):
        verb = "write" if found.st_mode & stat.S_IWOTH else "read"
        raise ConfigError(f"{option}: everybody may {verb} {path}; use chmod o-rwx {path}")
    return data


class Watched(Generic[T]):
    """What `load` makes of `paths`, made again when one of them has changed; looked at once in LOOK_S at most.

    What cannot be loaded later is logged, and the last good one stays. Any thread may ask. version: goes up with each.
    """

    def __init__(
        self, paths: Sequence[Path], load: Callable[[], T], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._paths, self._load, self._clock = tuple(paths), load, clock
        self._lock = threading.Lock()
        self._marks = self._look()  # before the load: a change meanwhile is then seen by the next look
        self._value = load()
        self._due = clock() + LOOK_S
        self.version = 1

    def get(self) -> T:
        """The newest that can be had."""
        with self._lock:
            now = self._clock()
            if now < self._due:
                return self._value
            self._due = now + LOOK_S
            marks = self._look()
            if marks != self._marks:
                self._marks = marks
                self._reload()
            return self._value

    def _reload(self) -> None:
        names = ", ".join(str(path) for path in self._paths)
        try:
            self._value = self._load()
        except ConfigError as error:
            log.error("what was read before stays in use: %s", error)
            return
        self.version += 1
        log.info("read again: %s", names)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_mark(path) for path in self._paths)


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
