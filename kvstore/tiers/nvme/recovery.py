"""Recovery: what the files of one path hold. Reads the footer of a sealed segment; walks through one that is not.

Nothing here trusts a byte that a checksum does not cover. A damaged record costs itself: the walk goes on at the next
page that begins a whole record of the same segment.
"""

import contextlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ....proto import PAGE_BYTES
from ....proto.encrypted import FindKey
from ....proto.footer import Table, TableBuilder, Trailer
from ....proto.record import RECORD_MAGIC, SegmentHeader, is_foreign
from ...errors import NvmeError
from ...security.keyring import ENVIRONMENT, OPTION
from .files import Files
from .moving import Parsed, parse_record, peek
from .segment import SUFFIX
from .transfer import Opener, fill
from .workers import aligned

log = logging.getLogger(__name__)

_NAME = re.compile(r"([0-9a-f]{16})" + re.escape(SUFFIX))
_FIRST_PAGES = 8  # header and dead bits of a segment up to 768 MiB
_LAST_PAGES = 32  # a footer of a few hundred records
_WINDOW_PAGES = 2048


@dataclass(slots=True, eq=False)
class Found:
    """A segment file. table: its records; unsealed: what builds the same table and the page behind its last record,
    for a segment that has no footer. key_missing, unopened: records that are whole and not in the table, since there is
    no key for them, or it does not open them."""

    header: SegmentHeader
    path: Path
    size_bytes: int
    bitmap: bytearray
    table: Table
    unsealed: tuple[TableBuilder, int] | None = None
    key_missing: int = 0
    unopened: int = 0


@dataclass(slots=True, eq=False)
class Recovered:
    """foreign: files that are left alone, and their bytes; next_number: of a new segment."""

    segments: list[Found] = field(default_factory=list[Found])
    foreign: dict[Path, int] = field(default_factory=dict[Path, int])
    errors: int = 0
    next_number: int = 1


def recover(opener: Opener, directory: Path, find: FindKey | None) -> Recovered:
    """All segments of a directory. OSError: it cannot even be listed. A file that cannot be read, or that another
    version wrote, is left alone and counted; one that was never finished is removed. NvmeError: there are encrypted
    ones and no keys at all, which is a mistake; a key that is not among others has been erased."""
    found = Recovered()
    for name in sorted(opener.files.listdir(directory)):
        match = _NAME.fullmatch(name)
        if match is None:
            continue
        number = int(match[1], 16)
        found.next_number = max(found.next_number, number + 1)
        _take_in(opener, directory / name, found, find)
    return found


def _take_in(opener: Opener, path: Path, found: Recovered, find: FindKey | None) -> None:
    size = 0
    try:
        handle = opener.open(path, "read")
        try:
            size = opener.files.size(handle)
            segment = read_segment(opener.files, handle, path, size, find)
        finally:
            opener.files.close(handle)
    except OSError as error:
        log.warning("%s cannot be read and is left alone: %s", path, error.strerror)
        found.errors += 1
        segment = None
    if isinstance(segment, Found):
        found.segments.append(segment)
    elif segment == "broken":
        log.warning("%s is no segment that was ever finished; removed", path)
        with contextlib.suppress(OSError):
            opener.files.unlink(path)
    else:
        if segment == "foreign":
            log.warning("%s was written by another version and is left alone; its bytes count", path)
        found.foreign[path] = size


def read_segment(files: Files, handle: int, path: Path, size: int, find: FindKey | None) -> Found | str:
    """The segment, or "foreign" or "broken". NvmeError: as recover()."""
    count = size // PAGE_BYTES
    first = aligned(max(1, min(_FIRST_PAGES, count)) * PAGE_BYTES)
    if not count or not fill(files, handle, [first], 0):
        return "broken"
    header = SegmentHeader.unpack(first)
    if header is None:
        return "foreign" if is_foreign(first) else "broken"
    if header.encrypted and find is None:
        raise NvmeError(
            f"{path.parent} has encrypted blocks, and no keys are given: {OPTION} or {ENVIRONMENT}. To give the blocks "
            "up, remove the .seg files"
        )
    if count < 1 + header.bitmap_pages:
        return "broken"
    if len(first) < (1 + header.bitmap_pages) * PAGE_BYTES:
        first = aligned((1 + header.bitmap_pages) * PAGE_BYTES)
        fill(files, handle, [first], 0)
    bitmap = bytearray(first[PAGE_BYTES : (1 + header.bitmap_pages) * PAGE_BYTES])
    table = _footer(files, handle, header, count, find)
    if table is not None:
        return Found(header, path, size, bitmap, table)
    walk = _Walk(header, find)
    walk.run(files, handle, count)
    found = Found(header, path, size, bitmap, walk.builder.table(), (walk.builder, walk.end))
    found.key_missing, found.unopened = walk.key_missing, walk.unopened
    return found


def _footer(files: Files, handle: int, header: SegmentHeader, count: int, find: FindKey | None) -> Table | None:
    begin = max(0, count - _LAST_PAGES)
    last = aligned((count - begin) * PAGE_BYTES)
    if fill(files, handle, [last], begin) < count - begin:
        return None
    trailer = Trailer.unpack(last[-PAGE_BYTES:])
    if trailer is None or trailer.segment != header.ident or not 0 < trailer.page < count:
        return None
    if trailer.version != header.version or trailer.page > 8 * PAGE_BYTES * header.bitmap_pages:
        return None
    if trailer.page < begin:
        begin = trailer.page
        last = aligned((count - begin) * PAGE_BYTES)
        fill(files, handle, [last], begin)
    at = (trailer.page - begin) * PAGE_BYTES
    return trailer.table(last[at : at + trailer.body_bytes], find)


class _Walk:
    """Finds records without a footer. builder: those that are whole; end: the page behind the last of them."""

    def __init__(self, header: SegmentHeader, find: FindKey | None) -> None:
        self.builder = TableBuilder(header.version)
        self.end = 1 + header.bitmap_pages
        self.key_missing = self.unopened = 0
        self._header = header
        self._find = find

    def run(self, files: Files, handle: int, count: int) -> None:
        """Through a file of `count` pages."""
        count = min(count, 8 * PAGE_BYTES * self._header.bitmap_pages)
        page = self.end
        window = aligned(min(_WINDOW_PAGES, max(1, count - page)) * PAGE_BYTES)
        while page < count:
            got = fill(files, handle, [window[: (count - page) * PAGE_BYTES]], page)
            if not got:
                break
            step = got if page + got == count else got - 1  # a header of two pages must not be cut
            longest = 0
            for at, length in _records(window[: got * PAGE_BYTES], step, self._header):
                if page + at < self.end:
                    continue  # within a whole record: its payload
                if at + length > got:
                    step, longest = at, min(length, count - page - at)
                    break
                self._take(window[at * PAGE_BYTES : (at + length) * PAGE_BYTES], page + at)
            page += step
            if not step:
                page, window = _widen(window, page, longest)

    def _take(self, record: memoryview, page: int) -> None:
        parsed = parse_record(record, self._find)
        if isinstance(parsed, Parsed):
            self.builder.add(parsed.header, page, parsed.tokens)
        elif parsed == "key_missing":
            self.key_missing += 1
        else:
            self.unopened += parsed == "unopened"
            return
        self.end = page + len(record) // PAGE_BYTES


def _widen(window: memoryview, page: int, wanted: int) -> tuple[int, memoryview]:
    return (page, aligned(wanted * PAGE_BYTES)) if wanted * PAGE_BYTES > len(window) else (page + 1, window)


def _records(window: memoryview, limit: int, segment: SegmentHeader) -> Iterator[tuple[int, int]]:
    """(page, pages) of the segment's records whose headers are whole and begin before page `limit`."""
    firsts = np.frombuffer(window, "<u8")[: limit * PAGE_BYTES // 8 : PAGE_BYTES // 8]
    for at in np.flatnonzero(firsts == RECORD_MAGIC).tolist():
        found = peek(window[at * PAGE_BYTES :])
        if found is not None and found.segment == segment.ident and (segment.encrypted or not found.key_id):
            yield at, found.record_pages
