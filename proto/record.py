"""The bytes of a segment file: header, dead bits, records, footer. Pure: bytes in, values out, and back.

docs/formats.md documents every byte; tests/golden/ holds files of every version. All numbers are little-endian, all
parts begin at a page of 4096 bytes, all checksums are xxh3-64 of what follows them in their pages.

    page 0                   segment header
    pages 1 .. bitmap_pages  a bit for each page of the file; set = the record that begins there is dead
    ...                      records: header page(s) and the stored bytes, padded to whole pages
    footer                   of a sealed segment only: groups, rows, tokens
    last page                trailer, which says where the footer is
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from .layout import MAX_BLOCK_TOKENS, PAGE_BYTES

VERSION = 1
KEY_BYTES = 32  # shorter ones (xxh3-128) are padded with zeros
HASH_IDS = {"sha256": 1, "xxh3-128": 2}
HASH_NAMES = {ident: name for name, ident in HASH_IDS.items()}

_SEGMENT_MAGIC, _RECORD_MAGIC, _TRAILER_MAGIC, _STATE_MAGIC = b"kvt-seg\0", b"kvt-rec\0", b"kvt-end\0", b"kvt-sta\0"
RECORD_MAGIC = int.from_bytes(_RECORD_MAGIC, "little")
"""The first eight bytes of a record."""

_FRAME = struct.Struct("<8sQ")  # magic, checksum of the rest
_SEGMENT = struct.Struct("<HHIQQQQ")
_RECORD = struct.Struct("<HBBBBBBQQQdIIIIQQ32s32s32s")
_TOKENS_AT = 192
_TRAILER = struct.Struct("<HHIQIIQQ")
_STATE = struct.Struct("<HHIQQ")
_GROUP = struct.Struct("<32sIIB7x")
_PINNED = 1

ROW = np.dtype(
    [
        ("key", np.uint8, KEY_BYTES),
        ("parent", np.uint8, KEY_BYTES),
        ("sequence", "<u8"),
        ("written_ms", "<u8"),
        ("ttl_s", "<f8"),
        ("page", "<u4"),
        ("stored_bytes", "<u4"),
        ("group", "<u2"),
        ("codec", "u1"),
        ("priority", "u1"),
        ("flags", "u1"),
        ("pad", "V3"),
    ]
)
_ROW = struct.Struct("<32s32sQQdIIHBBB3x")
MAX_GROUPS = 1 << 16

assert _ROW.size == ROW.itemsize
assert _FRAME.size + _RECORD.size <= _TOKENS_AT


def pages(size: int) -> int:
    """Whole pages that `size` bytes take."""
    return -(-size // PAGE_BYTES)


def header_pages(block_tokens: int) -> int:
    """Pages of a record's header: one for up to 976 tokens, two for the most a block may have."""
    return pages(_TOKENS_AT + 4 * block_tokens)


def record_bytes(block_bytes: int, block_tokens: int) -> int:
    """What a block takes in a segment when it is stored as it is."""
    return (header_pages(block_tokens) + pages(block_bytes)) * PAGE_BYTES


def row_bytes(block_tokens: int) -> int:
    """What a block takes in the footer."""
    return ROW.itemsize + 4 * block_tokens


class SegmentHeader(NamedTuple):
    """ident: random, in every record of the segment too. size_bytes: the largest that the file may become."""

    number: int
    ident: int
    size_bytes: int
    created_ms: int

    @property
    def bitmap_pages(self) -> int:
        return pages(pages(self.size_bytes) // 8 + 1)

    def pack(self) -> bytes:
        """One page."""
        return _frame(_SEGMENT_MAGIC, _SEGMENT.pack(VERSION, 0, 0, *self))

    @classmethod
    def unpack(cls, page: memoryview) -> "SegmentHeader | None":
        """None unless the page is whole and of this version."""
        if not _framed(page, _SEGMENT_MAGIC):
            return None
        version, _, _, *rest = _SEGMENT.unpack_from(page, _FRAME.size)
        return cls(*rest) if version == VERSION else None


def is_foreign(page: memoryview) -> bool:
    """Whether a first page is of another program or of a newer version: not ours to touch."""
    magic, _ = _FRAME.unpack_from(page)
    if magic != _SEGMENT_MAGIC:
        return bool(magic.strip(b"\0"))
    return _SEGMENT.unpack_from(page, _FRAME.size)[0] > VERSION


class RecordHeader(NamedTuple):
    """What a record says about its block. segment: ident of the segment it was written to. item_bytes: of one element,
    for the codec. written_ms: wall clock. codec: 0 = the stored bytes are the block's."""

    hash_id: int
    codec: int
    priority: int
    pinned: bool
    segment: int
    sequence: int
    written_ms: int
    ttl_s: float
    block_tokens: int
    item_bytes: int
    block_bytes: int
    stored_bytes: int
    block_checksum: int
    stored_checksum: int
    fingerprint: bytes
    key: bytes
    parent: bytes

    @property
    def header_pages(self) -> int:
        return header_pages(self.block_tokens)

    @property
    def record_pages(self) -> int:
        return header_pages(self.block_tokens) + pages(self.stored_bytes)

    def pack_into(self, out: memoryview, tokens: bytes) -> None:
        """Fill `out`, which is as long as the header's pages. tokens: the block's, packed int32."""
        assert len(out) == self.header_pages * PAGE_BYTES
        assert len(tokens) == 4 * self.block_tokens
        hash_id, codec, priority, pinned, *rest = self
        flags = _PINNED if pinned else 0
        _RECORD.pack_into(out, _FRAME.size, VERSION, self.header_pages, hash_id, codec, priority, flags, 0, *rest)
        end = _TOKENS_AT + len(tokens)
        out[_TOKENS_AT:end] = tokens
        out[_FRAME.size + _RECORD.size : _TOKENS_AT] = bytes(_TOKENS_AT - _FRAME.size - _RECORD.size)
        out[end:] = bytes(len(out) - end)
        _FRAME.pack_into(out, 0, _RECORD_MAGIC, xxhash.xxh3_64_intdigest(out[_FRAME.size :]))

    @classmethod
    def unpack(cls, head: memoryview) -> "tuple[RecordHeader, bytes] | None":
        """(header, packed tokens) of what begins with a record's header pages; None unless they are whole."""
        version, count, *first = _RECORD.unpack_from(head, _FRAME.size)
        if version != VERSION or not 0 < count * PAGE_BYTES <= len(head):
            return None
        if not _framed(head, _RECORD_MAGIC, count):
            return None
        hash_id, codec, priority, flags, _, *rest = first
        header = cls(hash_id, codec, priority, bool(flags & _PINNED), *rest)
        if header.block_tokens > MAX_BLOCK_TOKENS or header.header_pages != count:
            return None
        return header, bytes(head[_TOKENS_AT : _TOKENS_AT + 4 * header.block_tokens])


class Group(NamedTuple):
    """What many blocks of a segment have in common."""

    fingerprint: bytes
    block_tokens: int
    block_bytes: int
    hash_id: int


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """All records of a segment. rows: ROW [n]; tokens: for each group, int32 [its rows, block_tokens], in row order."""

    groups: Sequence[Group]
    rows: "NDArray[np.void]"
    tokens: Sequence[NDArray[np.int32]]


class TableBuilder:
    """Collects what the footer of a segment will say. Its size is known at any time."""

    def __init__(self) -> None:
        self.groups: dict[Group, int] = {}
        self._rows = bytearray()
        self._tokens: list[bytearray] = []
        self._size = 0

    def __len__(self) -> int:
        return len(self._rows) // _ROW.size

    def group(self, group: Group) -> int:
        """The group's number."""
        number = self.groups.setdefault(group, len(self.groups))
        if number == len(self._tokens):
            self._tokens.append(bytearray())
        return number

    def add(self, header: RecordHeader, page: int, tokens: bytes) -> int:
        """A record that begins at `page`; the number of its group."""
        group = self.group(Group(header.fingerprint, header.block_tokens, header.block_bytes, header.hash_id))
        self._tokens[group] += tokens
        self._rows += _ROW.pack(
            header.key,
            header.parent,
            header.sequence,
            header.written_ms,
            header.ttl_s,
            page,
            header.stored_bytes,
            group,
            header.codec,
            header.priority,
            _PINNED if header.pinned else 0,
        )
        return group

    def pack(self, segment: int, page: int) -> bytes:
        """Footer and trailer, whole pages, to be written at `page`, the file's last ones. segment: its ident."""
        body = b"".join([*(_GROUP.pack(*group) for group in self.groups), self._rows, *self._tokens])
        checksum = xxhash.xxh3_64_intdigest(body)
        fields = (VERSION, 0, len(self.groups), segment, page, len(self), len(body), checksum)
        return body + bytes(-len(body) % PAGE_BYTES) + _frame(_TRAILER_MAGIC, _TRAILER.pack(*fields))

    def table(self) -> Table:
        """What has been collected."""
        body = b"".join([*(_GROUP.pack(*group) for group in self.groups), self._rows, *self._tokens])
        found = _unpack_table(memoryview(body), len(self.groups), len(self))
        assert found is not None
        return found


def footer_bytes(groups: int, rows_bytes: int) -> int:
    """Of footer and trailer; rows_bytes: the sum of row_bytes() of the records."""
    return (pages(groups * _GROUP.size + rows_bytes) + 1) * PAGE_BYTES


class Trailer(NamedTuple):
    """Where a sealed segment's footer is."""

    groups: int
    segment: int
    page: int
    rows: int
    body_bytes: int
    checksum: int

    @classmethod
    def unpack(cls, page: memoryview) -> "Trailer | None":
        """None unless the page is whole and of this version."""
        if not _framed(page, _TRAILER_MAGIC):
            return None
        version, _, *rest = _TRAILER.unpack_from(page, _FRAME.size)
        return cls(*rest) if version == VERSION else None

    def table(self, body: memoryview) -> Table | None:
        """The footer decoded; body: body_bytes from its page on. None unless it is whole."""
        if len(body) != self.body_bytes or xxhash.xxh3_64_intdigest(body) != self.checksum:
            return None
        return _unpack_table(body, self.groups, self.rows)


def _unpack_table(body: memoryview, groups: int, count: int) -> Table | None:
    at = groups * _GROUP.size
    if groups > MAX_GROUPS or at + count * ROW.itemsize > len(body):
        return None
    named = [Group(*_GROUP.unpack_from(body, number * _GROUP.size)) for number in range(groups)]
    rows = np.frombuffer(body, ROW, count, at)
    at += count * ROW.itemsize
    tokens: list[NDArray[np.int32]] = []
    for group, members in zip(named, np.bincount(rows["group"], minlength=groups).tolist(), strict=True):
        tokens.append(np.frombuffer(body, "<i4", members * group.block_tokens, at).reshape(members, group.block_tokens))
        at += 4 * members * group.block_tokens
    return Table(named, rows, tokens)


def pinned(rows: "NDArray[np.void]") -> NDArray[np.bool_]:
    """Of each row."""
    return (rows["flags"] & _PINNED).astype(np.bool_)


class DeviceState(NamedTuple):
    """What a path remembers besides its segments. day: of the write budget, in days since 1970 (UTC); written_bytes:
    on that day, at least."""

    day: int
    written_bytes: int

    def pack(self) -> bytes:
        """One page."""
        return _frame(_STATE_MAGIC, _STATE.pack(VERSION, 0, 0, *self))

    @classmethod
    def unpack(cls, page: memoryview) -> "DeviceState | None":
        """None unless the page is whole and of this version."""
        if not _framed(page, _STATE_MAGIC):
            return None
        version, _, _, *rest = _STATE.unpack_from(page, _FRAME.size)
        return cls(*rest) if version == VERSION else None


def _frame(magic: bytes, fields: bytes) -> bytes:
    rest = fields + bytes(PAGE_BYTES - _FRAME.size - len(fields))
    return _FRAME.pack(magic, xxhash.xxh3_64_intdigest(rest)) + rest


def _framed(head: memoryview, magic: bytes, count: int = 1) -> bool:
    """Whether it begins with the magic and the checksum of the rest of `count` pages, whatever lies behind them."""
    if len(head) < count * PAGE_BYTES:
        return False
    found, checksum = _FRAME.unpack_from(head)
    return found == magic and checksum == xxhash.xxh3_64_intdigest(head[_FRAME.size : count * PAGE_BYTES])
