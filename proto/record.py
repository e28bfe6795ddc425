"""The bytes of a segment file: header, dead bits, records; proto/footer.py has the footer. Pure: bytes in, values out.

docs/formats.md documents every byte; tests/golden/ holds files of every version. All numbers are little-endian, all
parts begin at a page of 4096 bytes, all checksums are xxh3-64 of what follows them in their pages.

    page 0                   segment header
    pages 1 .. bitmap_pages  a bit for each page of the file; set = the record that begins there is dead
    ...                      records: header page(s) and the stored bytes, padded to whole pages
    footer                   of a sealed segment only: groups, rows, tokens
    last page                trailer, which says where the footer is

Version 1 is written where nothing is encrypted, version 2 where records may be; proto/encrypted.py has their headers.
"""

import struct
from typing import NamedTuple

from .frame import FRAME_BYTES, frame, frame_into, framed, magic_of
from .layout import MAX_BLOCK_TOKENS, PAGE_BYTES

VERSION = 1
ENCRYPTED_VERSION = 2
KEY_BYTES = 32  # shorter ones (xxh3-128) are padded with zeros
KEY_ID_BYTES = 8
HASH_IDS = {"sha256": 1, "xxh3-128": 2}
HASH_NAMES = {ident: name for name, ident in HASH_IDS.items()}

_SEGMENT_MAGIC, RECORD_TAG, _STATE_MAGIC = b"kvt-seg\0", b"kvt-rec\0", b"kvt-sta\0"
RECORD_MAGIC = int.from_bytes(RECORD_TAG, "little")
"""The first eight bytes of a record."""

_SEGMENT = struct.Struct("<HHIQQQQ")
_RECORD = struct.Struct("<HBBBBBBQQQdIIIIQQ32s32s32s")
_TOKENS_AT = 192
ENCRYPTED_TOKENS_AT = 272
_STATE = struct.Struct("<HHIQQ")
PINNED = 1

assert FRAME_BYTES + _RECORD.size <= _TOKENS_AT


def pages(size: int) -> int:
    """Whole pages that `size` bytes take."""
    return -(-size // PAGE_BYTES)


def header_pages(block_tokens: int, *, encrypted: bool = False) -> int:
    """Pages of a record's header: one for up to 976 tokens (956 encrypted), two for the most a block may have."""
    return pages((ENCRYPTED_TOKENS_AT if encrypted else _TOKENS_AT) + 4 * block_tokens)


def record_bytes(block_bytes: int, block_tokens: int) -> int:
    """What a block takes in a segment at most, encrypted or not."""
    return (header_pages(block_tokens, encrypted=True) + pages(block_bytes)) * PAGE_BYTES


class SegmentHeader(NamedTuple):
    """ident: random, in every record of the segment too. size_bytes: the largest that the file may become."""

    number: int
    ident: int
    size_bytes: int
    created_ms: int
    version: int = VERSION

    @property
    def bitmap_pages(self) -> int:
        return pages(pages(self.size_bytes) // 8 + 1)

    @property
    def encrypted(self) -> bool:
        """Whether it may hold encrypted records."""
        return self.version >= ENCRYPTED_VERSION

    def pack(self) -> bytes:
        """One page."""
        return frame(_SEGMENT_MAGIC, _SEGMENT.pack(self.version, 0, 0, *self[:-1]))

    @classmethod
    def unpack(cls, page: memoryview) -> "SegmentHeader | None":
        """None unless the page is whole and of a version that is known."""
        if not framed(page, _SEGMENT_MAGIC):
            return None
        version, _, _, *rest = _SEGMENT.unpack_from(page, FRAME_BYTES)
        return cls(*rest, version=version) if version in (VERSION, ENCRYPTED_VERSION) else None


def is_foreign(page: memoryview) -> bool:
    """Whether a first page is of another program or of a newer version: not ours to touch."""
    magic = magic_of(page)
    if magic != _SEGMENT_MAGIC or len(page) < FRAME_BYTES + _SEGMENT.size:
        return bool(magic.strip(b"\0"))
    return _SEGMENT.unpack_from(page, FRAME_BYTES)[0] > ENCRYPTED_VERSION


class RecordHeader(NamedTuple):
    """What a record says about its block. segment: ident of the segment it was written to. item_bytes: of one element,
    for the codec. written_ms: wall clock. codec: 0 = the stored bytes are the block's. stored_checksum: of the stored
    bytes as they lie on the disk. key_id: of the key that it is encrypted with, b"" = none."""

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
    key_id: bytes = b""

    @property
    def header_pages(self) -> int:
        return header_pages(self.block_tokens, encrypted=bool(self.key_id))

    @property
    def record_pages(self) -> int:
        return self.header_pages + pages(self.stored_bytes)

    def pack_into(self, out: memoryview, tokens: bytes) -> None:
        """Fill `out`, which is as long as the header's pages. tokens: the block's, packed int32."""
        assert not self.key_id, "encrypted headers are made by proto/encrypted.py"
        assert len(out) == self.header_pages * PAGE_BYTES
        assert len(tokens) == 4 * self.block_tokens
        hash_id, codec, priority, pinned, *rest = self[:-1]
        flags = PINNED if pinned else 0
        _RECORD.pack_into(out, FRAME_BYTES, VERSION, self.header_pages, hash_id, codec, priority, flags, 0, *rest)
        end = _TOKENS_AT + len(tokens)
        out[_TOKENS_AT:end] = tokens
        out[FRAME_BYTES + _RECORD.size : _TOKENS_AT] = bytes(_TOKENS_AT - FRAME_BYTES - _RECORD.size)
        out[end:] = bytes(len(out) - end)
        frame_into(out, RECORD_TAG)

    @classmethod
    def unpack(cls, head: memoryview) -> "tuple[RecordHeader, bytes] | None":
        """(header, packed tokens) of what begins with a record's header pages; None unless they are whole, and not
        encrypted."""
        if len(head) < PAGE_BYTES:
            return None
        version, count, *first = _RECORD.unpack_from(head, FRAME_BYTES)
        if version != VERSION or not count or not framed(head, RECORD_TAG, count):
            return None
        hash_id, codec, priority, flags, _, *rest = first
        header = cls(hash_id, codec, priority, bool(flags & PINNED), *rest)
        if not header.plausible or header.header_pages != count:
            return None
        return header, bytes(head[_TOKENS_AT : _TOKENS_AT + 4 * header.block_tokens])

    @property
    def plausible(self) -> bool:
        """Whether this program could have written it, as far as its numbers go."""
        return 0 < self.block_tokens <= MAX_BLOCK_TOKENS and self.hash_id in HASH_NAMES


class DeviceState(NamedTuple):
    """What a path remembers besides its segments. day: of the write budget, in days since 1970 (UTC); written_bytes:
    on that day, at least."""

    day: int
    written_bytes: int

    def pack(self) -> bytes:
        """One page."""
        return frame(_STATE_MAGIC, _STATE.pack(VERSION, 0, 0, *self))

    @classmethod
    def unpack(cls, page: memoryview) -> "DeviceState | None":
        """None unless the page is whole and of this version."""
        if not framed(page, _STATE_MAGIC):
            return None
        version, _, _, *rest = _STATE.unpack_from(page, FRAME_BYTES)
        return cls(*rest) if version == VERSION else None
