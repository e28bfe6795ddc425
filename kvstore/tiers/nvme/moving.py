"""Moving: whole records from one segment to another, byte for byte but for the header, which names its segment.

Jobs of the I/O threads, as in transfer.py. An encrypted record's header is sealed anew, with its own key; its stored
bytes stay as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from ....proto import PAGE_BYTES
from ....proto.encrypted import EncryptedHeader, FindKey, pack_encrypted
from ....proto.record import RecordHeader
from .transfer import Opener, drain, fill
from .workers import Scratch


class Unreadable(OSError):
    """It is the source that fails."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A record in its new place."""

    header: RecordHeader
    tokens: bytes
    page: int


class Target(NamedTuple):
    """Where records go: an open file, its segment's ident, the page of the first."""

    handle: int
    segment: int
    page: int


class Parsed(NamedTuple):
    """A whole record. sealed: its header as it lies, where it is encrypted."""

    header: RecordHeader
    tokens: bytes
    sealed: EncryptedHeader | None = None


def move_records(
    opener: Opener, path: Path, run: Sequence[tuple[int, int]], to: Target, find: FindKey | None, scratch: Scratch
) -> list[Moved | None]:
    """Copy records that lie one after another, (page, pages) each, from the file at `path`, without gaps. None for each
    that is damaged, or that no key of `find` opens, and was left behind. OSError: none was moved."""
    area = scratch.take("body", sum(length for _, length in run))
    try:
        source = opener.open(path, "read")
        try:
            filled = fill(opener.files, source, [area], run[0][0])
        finally:
            opener.files.close(source)
    except OSError as error:
        raise Unreadable(*error.args) from error
    area[filled * PAGE_BYTES :] = bytes(len(area) - filled * PAGE_BYTES)  # the file ends there: nothing stale instead
    moved: list[Moved | None] = []
    views: list[memoryview] = []
    page, at = to.page, 0
    for _, length in run:
        record = area[at * PAGE_BYTES : (at + length) * PAGE_BYTES]
        at += length
        found = parse_record(record, find)
        if not isinstance(found, Parsed):
            moved.append(None)
            continue
        header = found.header._replace(segment=to.segment)
        _pack(found, header, find, record[: header.header_pages * PAGE_BYTES])
        moved.append(Moved(header, found.tokens, page))
        views.append(record)
        page += length
    if views:
        drain(opener.files, to.handle, views, to.page)
    return moved


def _pack(found: Parsed, header: RecordHeader, find: FindKey | None, out: memoryview) -> None:
    if found.sealed is None:
        header.pack_into(out, found.tokens)
        return
    key = find(header.key_id) if find is not None else None
    assert key is not None, "it was opened a moment ago"
    pack_encrypted(header, found.tokens, key, found.sealed.body, out)


def peek(head: memoryview) -> RecordHeader | None:
    """What a record's header says in clear, encrypted or not; None: it is not whole."""
    sealed = EncryptedHeader.unpack(head)
    if sealed is not None:
        return sealed.header
    found = RecordHeader.unpack(head)
    return None if found is None else found[0]


def parse_record(record: memoryview, find: FindKey | None) -> Parsed | str:
    """What is exactly this long and whole, stored bytes included. Or why it is no record: "corrupt"; "key_missing";
    "unopened": there is a key with its id, which does not open it."""
    clear = peek(record)
    if clear is None or clear.record_pages * PAGE_BYTES != len(record):
        return "corrupt"
    at = clear.header_pages * PAGE_BYTES
    if xxhash.xxh3_64_intdigest(record[at : at + clear.stored_bytes]) != clear.stored_checksum:
        return "corrupt"
    sealed = EncryptedHeader.unpack(record)
    if sealed is None:
        found = RecordHeader.unpack(record)
        return "corrupt" if found is None else Parsed(*found)
    key = find(clear.key_id) if find is not None else None
    if key is None:
        return "key_missing"
    opened = sealed.open(key)
    return "unopened" if opened is None else Parsed(*opened, sealed)
