"""Upkeep: the blocking calls that make, seal, mark and remove segment files. All may raise OSError."""

import contextlib
import errno
from collections.abc import Sequence
from pathlib import Path

from ....proto import PAGE_BYTES
from ....proto.encrypted import FindKey
from ....proto.footer import TableBuilder
from ....proto.record import DeviceState, SegmentHeader
from .files import Files
from .transfer import Opener, drain, fill
from .workers import aligned

STATE_NAME = "state"
_NOT_OFFERED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


def paged(content: bytes) -> memoryview:
    """A copy that begins at a page, padded to whole pages."""
    area = aligned(-(-len(content) // PAGE_BYTES) * PAGE_BYTES)
    area[: len(content)] = content
    return area


def create_segment(opener: Opener, path: Path, header: SegmentHeader, min_free_bytes: int) -> int | None:
    """A new file with its header, its space taken; the handle. None: the file system would have too little left."""
    files = opener.files
    if files.free_bytes(path.parent) < header.size_bytes + min_free_bytes:
        return None
    handle = opener.open(path, "create")
    try:
        try:
            files.fallocate(handle, header.size_bytes)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
            files.truncate(handle, header.size_bytes)
        drain(files, handle, [paged(header.pack())], 0)
    except OSError:
        discard(files, path, handle)
        raise
    return handle


def discard(files: Files, path: Path, handle: int) -> None:
    """Close and remove, as far as the device lets us."""
    for call in (lambda: files.close(handle), lambda: files.unlink(path)):
        with contextlib.suppress(OSError):
            call()


def seal_segment(
    files: Files, handle: int, header: SegmentHeader, table: TableBuilder, page: int, find: FindKey | None
) -> int:
    """Write the footer behind the last record and cut the file there; how long it is. It is on the disk then. find: has
    the keys of its encrypted records."""
    footer = paged(table.pack(header.ident, page, find))
    size = page * PAGE_BYTES + len(footer)
    assert size <= header.size_bytes, "a footer larger than what was kept for it"
    files.fdatasync(handle)  # a footer that is whole vouches for the records before it, after a power cut too
    drain(files, handle, [footer], page)
    files.truncate(handle, size)
    files.fdatasync(handle)
    return size


def write_marks(opener: Opener, path: Path, marks: Sequence[tuple[int, bytes]], *, sync: bool) -> None:
    """Pages of a segment's dead bits, in place. A bit only ever goes from 0 to 1, so a torn page is either."""
    handle = opener.open(path, "write")
    try:
        for page, content in marks:
            drain(opener.files, handle, [paged(content)], page)
        if sync:
            opener.files.fdatasync(handle)
    finally:
        opener.files.close(handle)


def sync_file(opener: Opener, path: Path) -> None:
    handle = opener.open(path, "write")
    try:
        opener.files.fdatasync(handle)
    finally:
        opener.files.close(handle)


def unlink_segment(files: Files, path: Path, handle: int | None) -> None:
    """One that is gone already is fine."""
    if handle is not None:
        files.close(handle)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(path)


def write_state(files: Files, directory: Path, state: DeviceState) -> None:
    """Replace the state file in one step."""
    new = directory / f"{STATE_NAME}.new"
    with contextlib.suppress(FileNotFoundError):
        files.unlink(new)
    handle = files.open_segment(new, "create", direct=False)
    try:
        drain(files, handle, [paged(state.pack())], 0)
        files.fdatasync(handle)
    finally:
        files.close(handle)
    files.rename(new, directory / STATE_NAME)


def read_state(files: Files, directory: Path) -> DeviceState | None:
    """None: there is none that is whole."""
    try:
        handle = files.open_segment(directory / STATE_NAME, "read", direct=False)
    except OSError:
        return None
    page = aligned(PAGE_BYTES)
    try:
        return DeviceState.unpack(page) if fill(files, handle, [page], 0) else None
    except OSError:
        return None
    finally:
        files.close(handle)
