"""Claims: which tenant a namespace belongs to, in a small file beside the records that outlive the process.

A fingerprint is a hash: who may read a record cannot be told from it. Without this file a restarted store could neither
count a namespace to its tenant nor erase a tenant before its engines came back. A line is written, and synced, before
the first record of a namespace; one that is torn by a crash has no records. Bounded: when there are many, a start drops
those of namespaces without a record.
"""

import contextlib
import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

log = logging.getLogger(__name__)

FILE_NAME = "tenants"
MAX_LINES = 1 << 16
COMPACT_ABOVE = 1 << 12
_LINE = re.compile(r"([0-9a-f]{64}) (\*|[A-Za-z0-9_.:\-]{0,128})")


class Claims:
    """directories: where a copy of the file is kept each; none = it is not kept."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._files = [each / FILE_NAME for each in directories]
        self._names: dict[bytes, str] = {}
        for path in self._files:
            for line in _lines(path):
                found = _LINE.fullmatch(line)
                if found is not None:
                    self._names[bytes.fromhex(found[1])] = found[2]

    def get(self, fingerprint: bytes) -> str | None:
        """The tenant's name; None = not known."""
        return self._names.get(fingerprint)

    def of(self, name: str) -> list[bytes]:
        """A tenant's namespaces."""
        return [fingerprint for fingerprint, owner in self._names.items() if owner == name]

    def add(self, fingerprint: bytes, name: str) -> None:
        """It is that tenant's."""
        if self._names.get(fingerprint) == name:
            return
        self._names[fingerprint] = name
        for path in self._files:
            try:
                _append(path, f"{fingerprint.hex()} {name}\n")
            except OSError as error:
                log.error("%s: whose namespace %s is was not written: %s", path, fingerprint.hex()[:12], error.strerror)

    def keep(self, present: set[bytes], most: int = COMPACT_ABOVE) -> None:
        """Forget others than these, in the files, too, once there are more than `most`. Not before: a device that is
        away for a day must not cost its namespaces their owner."""
        if len(self._names) <= most:
            return
        self._names = {each: name for each, name in self._names.items() if each in present}
        text = "".join(f"{each.hex()} {name}\n" for each, name in self._names.items())
        for path in self._files:
            with contextlib.suppress(OSError):  # the old one says no less
                _replace(path, text)


def _lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="ascii", errors="replace") as file:
            return [line.rstrip("\n") for _, line in zip(range(MAX_LINES), file, strict=False)]
    except OSError:
        return []


def _append(path: Path, line: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        os.write(fd, (("\n" if torn else "") + line).encode("ascii"))
        os.fsync(fd)
    finally:
        os.close(fd)


def _replace(path: Path, text: str) -> None:
    if not text and not path.exists():
        return
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, text.encode("ascii"))
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.replace(path)
