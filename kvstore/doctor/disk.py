"""A path of the NVMe tier, or where one would be. Writes one page to a nameless file there, and nothing that stays."""

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..disks import examine, filesystem_of
from ..status_view import format_bytes
from ..tiers.nvme.startup import LOCK_NAME, MIN_SEGMENTS
from .finding import Finding, fail, ok, warn
from .machine import mount_options

SEGMENT_BYTES = 256 << 20
PAGE_BYTES = 4096
VIRTUAL = ("vd", "xvd")  # they often say that they spin
LEAST_BYTES = MIN_SEGMENTS * SEGMENT_BYTES + 4 * PAGE_BYTES


def look_at_disk(path: Path, capacity_bytes: int, min_free_bytes: int, root: Path = Path("/")) -> Iterator[Finding]:
    """capacity_bytes: the cap wanted there; 0 = it is not said."""
    what = f"nvme {path}"
    if capacity_bytes and capacity_bytes < LEAST_BYTES:
        do = f"give it {format_bytes(LEAST_BYTES)} or more: three segments"
        yield fail(f"{what} size", f"{format_bytes(capacity_bytes)} are too few", do)
    found = examine(path, capacity_bytes)
    if found.error:
        yield fail(what, found.error, "choose a directory on a disk that this user may write")
        return
    for warning in found.warnings:
        said, _, do = warning.partition("; ")
        yield warn(f"{what} place", said, do or "choose a smaller SIZE or a larger disk")
    there = next(each for each in (path, *path.parents) if each.is_dir())
    yield _space(what, there, path, min_free_bytes)
    yield _direct(what, there)
    yield _device(what, there, root)
    owner = _owner(path)
    if owner is not None:
        yield owner


def _space(what: str, there: Path, path: Path, min_free_bytes: int) -> Finding:
    stat = os.statvfs(there)
    free = stat.f_bavail * stat.f_frsize
    made = "" if path.is_dir() else ", will be made"
    said = f"{filesystem_of(there) or 'unknown file system'}{made}, {format_bytes(free)} free"
    if free < min_free_bytes:
        do = f"free some: {format_bytes(min_free_bytes)} are left to others (--nvme-min-free), nothing could be written"
        return fail(what, said, do)
    if stat.f_files and stat.f_favail < 1000:
        return warn(what, f"{said}, {stat.f_favail:,} inodes", "free inodes: each segment is a file")
    return ok(what, said)


def _direct(what: str, there: Path) -> Finding:
    """One page written past the page cache, and read back."""
    try:
        handle, name = _scratch(there)
    except OSError as error:
        direct = error.errno == errno.EINVAL
        if direct:
            return warn(
                f"{what} O_DIRECT",
                "not supported there: the page cache would be filled with what DRAM has already",
                "choose a directory on ext4, xfs or another file system of a local disk",
            )
        return fail(what, f"a file cannot be made there: {error.strerror}", "choose a directory this user may write")
    try:
        with mmap.mmap(-1, PAGE_BYTES) as page, mmap.mmap(-1, PAGE_BYTES) as back:
            page[:] = os.urandom(PAGE_BYTES)
            os.pwritev(handle, [page], 0)
            os.fdatasync(handle)
            os.preadv(handle, [back], 0)
            same = page[:] == back[:]
    except OSError as error:
        return fail(f"{what} O_DIRECT", f"a page cannot be written: {error.strerror}", "look at dmesg and the disk")
    finally:
        os.close(handle)
        if name is not None:
            name.unlink(missing_ok=True)
    if not same:
        return fail(f"{what} O_DIRECT", "what was written is not what is read back", "do not use this disk")
    return ok(f"{what} O_DIRECT", "a page written, synced and read back past the page cache")


def _scratch(there: Path) -> tuple[int, Path | None]:
    """A nameless file where the file system has such; else one that is removed. EINVAL: no O_DIRECT there."""
    flags = os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC
    try:
        return os.open(there, flags | os.O_TMPFILE, 0o600), None
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            raise
    handle, text = tempfile.mkstemp(prefix=".kvterrace-doctor-", dir=there)
    os.close(handle)
    name = Path(text)
    try:
        return os.open(name, flags), name
    except OSError:
        name.unlink(missing_ok=True)
        raise


def _device(what: str, there: Path, root: Path) -> Finding:
    """Spinning or not, and how it is mounted."""
    what, options = f"{what} device", mount_options(there, root)
    number = there.stat().st_dev
    queue = root / f"sys/dev/block/{os.major(number)}:{os.minor(number)}"
    spins = next(
        (text for text in (_read(queue / "queue/rotational"), _read(queue / "../queue/rotational")) if text), ""
    )
    model, name = _read(queue / "device/model") or _read(queue / "../device/model"), _name(queue)
    kind = {"0": "solid state", "1": "rotational"}.get(spins, "unknown kind")
    if name.startswith(VIRTUAL) and spins == "1":
        kind = "a virtual disk, of which the kernel knows nothing"
    said = f"{kind}{f' ({model})' if model else ''}, mounted {','.join(options[:6])}"
    if "ro" in options:
        return fail(what, said, "mount it read-write")
    if kind == "rotational":
        return warn(what, said, "choose an SSD: a seek takes longer than computing a block does")
    if {"sync", "dirsync"} & set(options):
        return warn(what, said, "mount it without sync: every write waits otherwise")
    return ok(what, said)


def _name(queue: Path) -> str:
    """Of the block device, such as nvme0n1p1."""
    try:
        return queue.resolve(strict=True).name
    except OSError:
        return ""


def _owner(path: Path) -> Finding | None:
    """Whether a store has it; None where none ever had."""
    lock = path / LOCK_NAME
    try:
        handle = os.open(lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return ok(f"nvme {path} owner", "a running store has it; a second one would be refused")
    finally:
        os.close(handle)
    return ok(f"nvme {path} owner", "a store was here; it will be found again")


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
