"""Transfer: the jobs of the I/O threads. Each moves a run of records between one file and memory, checks them, and
answers for each one apart. No state, nothing shared: what they are given is theirs until they return.
"""

import ctypes
import errno
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from ....proto import PAGE_BYTES
from ....proto.encrypted import TAG_BYTES, Bytes, EncryptedHeader, RecordKey, open_body, pack_encrypted, seal_body
from ....proto.record import RecordHeader, pages
from ..base import Failed, Got, Hit, Miss, Record, Wanted
from ..codec import codec_of
from .files import Access, Files
from .types import U8
from .workers import Scratch

log = logging.getLogger(__name__)


class Opener:
    """Opens files past the page cache, or through it where the file system wants it so."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self.direct = True

    def open(self, path: Path, access: Access) -> int:
        if self.direct:
            try:
                return self.files.open_segment(path, access, direct=True)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            log.warning("%s: its file system offers no direct I/O, so the page cache keeps a second copy", path.parent)
            self.direct = False
        return self.files.open_segment(path, access, direct=False)


@dataclass(slots=True, eq=False)
class Reading:
    """One record to read. page, head_pages, stored_pages, codec: where and how memory says it lies. key: what it is
    encrypted with; None = it is not."""

    wanted: Wanted
    page: int
    head_pages: int
    stored_pages: int
    codec: int
    key: RecordKey | None = None

    @property
    def pages(self) -> int:
        return self.head_pages + self.stored_pages


@dataclass(slots=True, eq=False)
class Outcome:
    """answers: one each; error: the first device error. unopened: records that their key did not open."""

    answers: list[Got] = field(default_factory=list[Got])
    read_bytes: int = 0
    unopened: int = 0
    error: OSError | None = None


def read_records(opener: Opener, path: Path, segment: int, parts: Sequence[Reading], scratch: Scratch) -> Outcome:
    """Read records that lie one after another in the segment with that ident, straight into `wanted.into` where it is
    page-aligned and the record raw. Trouble with the whole run is looked into record by record."""
    outcome, plan = Outcome(), _Plan(parts, scratch)
    scratch.take_turn()
    try:
        handle = opener.open(path, "read")
    except OSError as error:
        outcome.error = error
        outcome.answers = [Failed("io") for _ in parts]
        return outcome
    try:
        outcome.answers = _read_run(opener.files, handle, segment, plan, scratch, outcome)
    finally:
        opener.files.close(handle)
    return outcome


class _Plan:
    """What is read where. views: memory to fill, one after the other; placed: header of each record, and its body
    where that is not in `into` at once, with a page of room behind it where it is encrypted."""

    def __init__(self, parts: Sequence[Reading], scratch: Scratch) -> None:
        self.parts = parts
        self.views: list[memoryview] = []
        self.placed: list[tuple[memoryview, memoryview | None]] = []
        directs = [_is_direct(part) for part in parts]
        heads = scratch.take("head", sum(part.head_pages for part in parts))
        spare = [part.key is not None for part in parts]  # a page behind each of these, for its tag
        bounced = sum(part.stored_pages for part, direct in zip(parts, directs, strict=True) if not direct)
        bounce = scratch.take("body", bounced + sum(spare))
        head_at = body_at = 0
        for part, direct in zip(parts, directs, strict=True):
            head = heads[head_at : head_at + part.head_pages * PAGE_BYTES]
            head_at += len(head)
            size = part.stored_pages * PAGE_BYTES
            if direct:
                body = part.wanted.into.data[:size]
            else:
                body = bounce[body_at : body_at + size + (PAGE_BYTES if part.key is not None else 0)]
                body_at += len(body)
            self.views += (head, body[:size])
            self.placed.append((head, None if direct else body))


def _read_run(files: Files, handle: int, segment: int, plan: _Plan, scratch: Scratch, outcome: Outcome) -> list[Got]:
    parts = plan.parts
    try:
        filled = fill(files, handle, plan.views, parts[0].page)
    except OSError as error:
        outcome.error = outcome.error or error
        filled = 0
        if len(parts) == 1:
            return [Failed("io")]
    outcome.read_bytes += filled * PAGE_BYTES
    if len(parts) > 1 and filled < sum(part.pages for part in parts):
        alone = (_read_run(files, handle, segment, _Plan([part], scratch), scratch, outcome) for part in parts)
        return [got for (got,) in alone]
    if filled < sum(part.pages for part in parts):
        return [Failed("corrupt")]
    if len(parts) > 1:  # else there may be more of them to read
        scratch.end_turn()
    placed = zip(parts, plan.placed, strict=True)
    return [_judge(part, segment, head, body, outcome) for part, (head, body) in placed]


def _is_direct(part: Reading) -> bool:
    into = part.wanted.into
    return part.codec == 0 and part.key is None and into.nbytes >= part.stored_pages * PAGE_BYTES and is_aligned(into)


def is_aligned(memory: U8) -> bool:
    """Whether it begins at a page."""
    if not memory.flags.writeable:
        return memory.__array_interface__["data"][0] % PAGE_BYTES == 0
    return ctypes.addressof(ctypes.c_char.from_buffer(memory.data)) % PAGE_BYTES == 0  # ten times as fast


def _judge(part: Reading, segment: int, head: memoryview, body: memoryview | None, outcome: Outcome) -> Got:
    """The answer for a record that was read, whose block is in `into` when it is a Hit. body: its stored bytes; None =
    they are there already."""
    if part.key is not None:
        assert body is not None
        return _judge_encrypted(part, part.key, segment, head, body, outcome)
    wanted = part.wanted
    found = RecordHeader.unpack(head)
    wrong = _wrong(part, segment, found)
    if found is None or wrong is not None:
        return wrong or Failed("corrupt")
    header = found[0]
    into = wanted.into.data[: wanted.block_bytes]
    if body is not None and header.codec:
        if xxhash.xxh3_64_intdigest(body[: header.stored_bytes]) != header.stored_checksum:
            return Failed("corrupt")
        return _decode(header, body[: header.stored_bytes], wanted.into[: wanted.block_bytes])
    if body is not None:
        into[:] = body[: wanted.block_bytes]
    return Hit(header.block_checksum) if xxhash.xxh3_64_intdigest(into) == header.block_checksum else Failed("corrupt")


def _wrong(part: Reading, segment: int, found: tuple[RecordHeader, bytes] | None) -> Got | None:
    """What a header stands against, None = nothing: it is that of the block that is wanted."""
    wanted = part.wanted
    if found is None or found[0].segment != segment or found[0].key != padded(wanted.key):
        return Failed("corrupt")
    header, tokens = found
    said = (header.fingerprint, header.parent, tokens, header.block_bytes)
    if said != (wanted.fingerprint, padded(wanted.parent), wanted.tokens, wanted.block_bytes):
        return Miss()  # the question is wrong, not the record
    if pages(header.stored_bytes) != part.stored_pages or header.codec != part.codec:
        return Failed("corrupt")
    return None


def _judge_encrypted(
    part: Reading, key: RecordKey, segment: int, head: memoryview, body: memoryview, outcome: Outcome
) -> Got:
    """The same; the block is opened into `into`, or before its codec into memory of its own."""
    sealed = EncryptedHeader.unpack(head)
    if sealed is None or sealed.header.key_id != key.ident:
        return Failed("corrupt")
    found = sealed.open(key)
    if found is None:
        outcome.unopened += 1
        return Failed("corrupt")
    wrong = _wrong(part, segment, found)
    if wrong is not None:
        return wrong
    header, into = found[0], part.wanted.into[: part.wanted.block_bytes]
    plain = np.empty(header.stored_bytes, np.uint8) if header.codec else into
    if len(plain) != header.stored_bytes:
        return Failed("corrupt")
    if not open_body(key, sealed.body, body[: header.stored_bytes + TAG_BYTES], plain.data):
        outcome.unopened += 1
        return Failed("corrupt")
    if header.codec:
        return _decode(header, plain.data, into)
    whole = xxhash.xxh3_64_intdigest(into.data) == header.block_checksum
    return Hit(header.block_checksum) if whole else Failed("corrupt")


def _decode(header: RecordHeader, stored: memoryview, into: U8) -> Got:
    codec = codec_of(header.codec)
    if codec is None:
        return Miss()  # a newer program's
    try:
        codec.decode(np.frombuffer(stored, np.uint8), into)
    except ValueError:
        return Failed("corrupt")
    whole = xxhash.xxh3_64_intdigest(into.data) == header.block_checksum
    return Hit(header.block_checksum) if whole else Failed("corrupt")


def padded(key: bytes) -> bytes:
    """A key as records have it."""
    return key if len(key) == 32 else key.ljust(32, b"\0")


@dataclass(slots=True, eq=False)
class Storing:
    """One record to write. stored: what the codec made of it, None = the payload as it is. key: to encrypt it with."""

    record: Record
    header: RecordHeader
    stored: bytes | None
    key: RecordKey | None = None

    @property
    def pages(self) -> int:
        return self.header.record_pages


def write_records(files: Files, handle: int, page: int, parts: Sequence[Storing], scratch: Scratch) -> list[bool]:
    """Write records one after another from `page` on, straight from payloads that are page-aligned. False for each
    whose payload does not fit its checksum: its place stays without a header. OSError: none of them is there."""
    bounced = [_bounced_pages(part) for part in parts]
    heads = scratch.take("head", sum(part.header.header_pages for part in parts))
    bounce = scratch.take("body", sum(bounced) + 1)  # the last tag may lie behind its pages, until it is in its header
    views: list[memoryview] = []
    good: list[bool] = []
    head_at = body_at = 0
    for part, bounced_pages in zip(parts, bounced, strict=True):
        head = heads[head_at : head_at + part.header.header_pages * PAGE_BYTES]
        head_at += len(head)
        size = pages(part.header.stored_bytes) * PAGE_BYTES
        block = part.record.payload.data[: part.record.block_bytes]
        good.append(xxhash.xxh3_64_intdigest(block) == part.header.block_checksum)
        if not good[-1]:
            head[:] = bytes(len(head))
        elif part.key is None:
            part.header.pack_into(head, part.record.tokens)
        if bounced_pages:
            body = bounce[body_at : body_at + size]
            stored = block if part.stored is None else part.stored
            if part.key is None:
                body[: part.header.stored_bytes] = stored
            elif good[-1]:
                _encrypt(part, part.key, stored, head, bounce[body_at : body_at + size + TAG_BYTES])
            else:
                body[:] = bytes(size)  # nothing of what is in memory
            body_at += size
        else:
            body = part.record.payload.data[:size]
        views += (head, body)
    drain(files, handle, views, page)
    return good


def _encrypt(part: Storing, key: RecordKey, stored: Bytes, head: memoryview, area: memoryview) -> None:
    """Header and stored bytes, padded with zeros. area: TAG_BYTES longer than the pages."""
    size = part.header.stored_bytes
    body = seal_body(key, stored, area[: size + TAG_BYTES])
    area[size:] = bytes(len(area) - size)
    header = part.header._replace(stored_checksum=xxhash.xxh3_64_intdigest(area[:size]))
    pack_encrypted(header, part.record.tokens, key, body, head)


def _bounced_pages(part: Storing) -> int:
    count = pages(part.header.stored_bytes)
    payload = part.record.payload
    direct = part.stored is None and part.key is None and payload.nbytes >= count * PAGE_BYTES and is_aligned(payload)
    return 0 if direct else count


def fill(files: Files, handle: int, views: Sequence[memoryview], page: int) -> int:
    """Read whole pages into page-sized views; how many pages came, fewer only where the file ends. OSError."""
    return _whole(lambda left, at: files.preadv(handle, left, at * PAGE_BYTES), views, page)


def drain(files: Files, handle: int, views: Sequence[memoryview], page: int) -> None:
    """Write whole pages. OSError also when the device takes no more of them."""
    if _whole(lambda left, at: files.pwritev(handle, left, at * PAGE_BYTES), views, page) < _pages_of(views):
        raise OSError(errno.EIO, "the device takes no more bytes")


def _whole(call: Callable[[Sequence[memoryview], int], int], views: Sequence[memoryview], page: int) -> int:
    """Repeat a call that may do less than it is asked, until it is done or makes no progress twice."""
    done, stalled, total = 0, 0, _pages_of(views)
    left = views
    while done < total and stalled < 2:
        count = call(left, page + done) // PAGE_BYTES  # a part of a page is done again: direct I/O begins at pages
        stalled = 0 if count else stalled + 1
        done += count
        if count and done < total:
            left = _after(left, count * PAGE_BYTES)
    return done


def _pages_of(views: Sequence[memoryview]) -> int:
    return sum(map(len, views)) // PAGE_BYTES


def _after(views: Sequence[memoryview], size: int) -> list[memoryview]:
    """The views behind their first `size` bytes."""
    for at, view in enumerate(views):
        if size < len(view):
            return [view[size:], *views[at + 1 :]]
        size -= len(view)
    return []
