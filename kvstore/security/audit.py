"""AuditLog: one line of JSON for each administrative call. Never an error to who made the call."""

import json
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import ConfigError
from .identity import Identity

log = logging.getLogger("kvterrace.audit")

MAX_TEXT_CHARS = 256
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class AuditLog:
    """path: a file that is only appended to; None = the log of this process, logger kvterrace.audit. A file that was
    moved away is made anew. Lines are small and written at once, so that they are there after a crash of the process.
    ConfigError: it cannot be opened."""

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._file = -1
        self._torn = False  # a line was written in part
        self._complained = False
        self.records = 0
        self.failures = 0
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise ConfigError(f"--audit-log: {path} cannot be written: {error.strerror or error}") from None

    def record(self, who: Identity | None, call: str, what: Mapping[str, object], outcome: str, peer: str) -> None:
        """What was asked, by whom and what came of it. who: None = nobody that is known."""
        line = json.dumps(
            {
                "time": round(self._clock(), 3),
                "identity": who.name if who is not None else "",
                "tenant": who.tenant if who is not None else "",
                "call": call,
                **{key: value[:MAX_TEXT_CHARS] if isinstance(value, str) else value for key, value in what.items()},
                "outcome": outcome[:MAX_TEXT_CHARS],
                "peer": peer[:MAX_TEXT_CHARS],
            }
        )
        self.records += 1
        if self._path is None:
            log.info("%s", line)
            return
        try:
            self._write(self._path, line)
            self._complained = False
        except OSError as error:
            self.failures += 1
            if not self._complained:
                self._complained = True
                log.error("%s cannot be written: %s; its lines come here", self._path, error.strerror or error)
            log.warning("%s", line)

    def close(self) -> None:
        """Closing twice is harmless."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, path: Path, line: str) -> None:
        if self._moved(path):
            self.close()
            self._open(path)
        data = ("\n" if self._torn else "").encode() + f"{line}\n".encode()
        done_bytes = os.write(self._file, data)
        self._torn = done_bytes < len(data)
        if self._torn:
            raise OSError(0, "no room for a whole line")

    def _open(self, path: Path) -> None:
        self._file = os.open(path, _FLAGS, 0o600)
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            self.close()
            raise OSError(0, "it is no file")

    def _moved(self, path: Path) -> bool:
        if self._file < 0:
            return True
        try:
            there, ours = path.stat(), os.fstat(self._file)
        except OSError:
            return True
        return (there.st_dev, there.st_ino) != (ours.st_dev, ours.st_ino)
