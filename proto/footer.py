"""Footer and trailer of a sealed segment: all that recovery needs to know of its records. Pure, as proto/record.py.

Version 1 has groups, rows, tokens. Version 2, in segments that may hold encrypted records, has groups, rows without
keys, and for each group its keys, parents and tokens, encrypted where its records are. docs/formats.md has every byte.
"""

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from .encrypted import NONCE_BYTES, TAG_BYTES, FindKey
from .frame import FRAME_BYTES, frame, framed
from .layout import MAX_BLOCK_TOKENS, PAGE_BYTES
from .record import ENCRYPTED_VERSION, HASH_NAMES, KEY_BYTES, KEY_ID_BYTES, PINNED, VERSION, RecordHeader, pages

_TRAILER_MAGIC = b"kvt-end\0"
_TRAILER = struct.Struct("<HHIQIIQQ")
_GROUP = struct.Struct("<32sIIB7x")
_GROUP2 = struct.Struct("<32sIIB7x8s24s")
_BLANK = bytes(KEY_ID_BYTES)

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

assert _ROW.size == ROW.itemsize
ROW2 = np.dtype(
    [
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
"""A row of version 2: the same without key and parent."""
_SHARED = ("sequence", "written_ms", "ttl_s", "page", "stored_bytes", "group", "codec", "priority", "flags")

assert ROW2.itemsize == ROW.itemsize - 2 * KEY_BYTES


def row_bytes(block_tokens: int) -> int:
    """What a block takes in the footer."""
    return ROW.itemsize + 4 * block_tokens


def footer_bytes(groups: int, rows_bytes: int, version: int) -> int:
    """Of footer and trailer at most; rows_bytes: the sum of row_bytes() of the records."""
    group = _GROUP.size if version == VERSION else _GROUP2.size + TAG_BYTES
    return (pages(groups * group + rows_bytes) + 1) * PAGE_BYTES


class Group(NamedTuple):
    """What many blocks of a segment have in common. key_id: of the key that they are encrypted with, b"" = none."""

    fingerprint: bytes
    block_tokens: int
    block_bytes: int
    hash_id: int
    key_id: bytes = b""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """All records of a segment. rows: ROW [n]; tokens: for each group, int32 [its rows, block_tokens], in row order.
    locked: groups whose key is not at hand; keys, parents and tokens of their rows are zeros."""

    groups: Sequence[Group]
    rows: "NDArray[np.void]"
    tokens: Sequence[NDArray[np.int32]]
    locked: frozenset[int] = frozenset()


class TableBuilder:
    """Collects what the footer of a segment will say. Its size is known at any time. version: of the segment."""

    def __init__(self, version: int) -> None:
        self.groups: dict[Group, int] = {}
        self.version = version
        self._rows = bytearray()
        self._tokens: list[bytearray] = []

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
        assert not header.key_id or self.version == ENCRYPTED_VERSION
        group = self.group(group_of(header))
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
            PINNED if header.pinned else 0,
        )
        return group

    def pack(self, segment: int, page: int, find: FindKey | None = None) -> bytes:
        """Footer and trailer, whole pages, to be written at `page`, the file's last ones. segment: its ident. find: has
        the key of every group that has one."""
        if self.version == VERSION:
            body = b"".join([*(_GROUP.pack(*group[:-1]) for group in self.groups), self._rows, *self._tokens])
        else:
            body = self._pack_encrypted(segment, find)
        checksum = xxhash.xxh3_64_intdigest(body)
        fields = (self.version, 0, len(self.groups), segment, page, len(self), len(body), checksum)
        return body + bytes(-len(body) % PAGE_BYTES) + frame(_TRAILER_MAGIC, _TRAILER.pack(*fields))

    def table(self) -> Table:
        """What has been collected."""
        rows = np.frombuffer(bytes(self._rows), ROW)
        parts = zip(self.groups, self._tokens, strict=True)
        tokens = [np.frombuffer(bytes(ids), "<i4").reshape(-1, group.block_tokens) for group, ids in parts]
        return Table(list(self.groups), rows, tokens)

    def _pack_encrypted(self, segment: int, find: FindKey | None) -> bytes:
        table = self.table()
        short = np.zeros(len(table.rows), ROW2)
        for name in _SHARED:
            short[name] = table.rows[name]
        bound = _bound(segment, table.groups, short.tobytes())
        heads: list[bytes] = []
        parts: list[bytes] = []
        for number, group in enumerate(table.groups):
            members = table.rows[table.rows["group"] == number]
            plain = members["key"].tobytes() + members["parent"].tobytes() + table.tokens[number].tobytes()
            nonce = bytes(NONCE_BYTES)
            if group.key_id:
                key = find(group.key_id) if find is not None else None
                assert key is not None, "an encrypted record of a key that is not at hand"
                sealed = bytearray(len(plain) + TAG_BYTES)
                nonce = key.seal_into(plain, bound + number.to_bytes(4, "little"), sealed)
                plain = bytes(sealed)
            heads.append(_pack_group(group, nonce))
            parts.append(plain)
        return b"".join([*heads, short.tobytes(), *parts])


def group_of(header: RecordHeader) -> Group:
    return Group(header.fingerprint, header.block_tokens, header.block_bytes, header.hash_id, header.key_id)


def _pack_group(group: Group, nonce: bytes) -> bytes:
    return _GROUP2.pack(*group[:-1], group.key_id or _BLANK, nonce)


def _bound(segment: int, groups: Sequence[Group], rows: bytes) -> bytes:
    """Additional data of each encrypted group: all that is in clear, but nonces; its number follows."""
    clear = b"".join(_pack_group(group, bytes(NONCE_BYTES)) for group in groups)
    return _TRAILER_MAGIC + segment.to_bytes(8, "little") + hashlib.sha256(clear + rows).digest()


class Trailer(NamedTuple):
    """Where a sealed segment's footer is."""

    groups: int
    segment: int
    page: int
    rows: int
    body_bytes: int
    checksum: int
    version: int = VERSION

    @classmethod
    def unpack(cls, page: memoryview) -> "Trailer | None":
        """None unless the page is whole and of a version that is known."""
        if not framed(page, _TRAILER_MAGIC):
            return None
        version, _, *rest = _TRAILER.unpack_from(page, FRAME_BYTES)
        return cls(*rest, version=version) if version in (VERSION, ENCRYPTED_VERSION) else None

    def table(self, body: memoryview, find: FindKey | None = None) -> Table | None:
        """The footer decoded; body: body_bytes from its page on. None unless it is whole, and the keys at hand open
        what is encrypted with them. find: the keys at hand."""
        if len(body) != self.body_bytes or xxhash.xxh3_64_intdigest(body) != self.checksum:
            return None
        made = _unpack_clear(body, self) if self.version == VERSION else _unpack_encrypted(body, self, find)
        if made is None or (made.rows["page"] >= self.page).any():
            return None
        return made


def _unpack_clear(body: memoryview, trailer: Trailer) -> Table | None:
    at = trailer.groups * _GROUP.size
    if at + trailer.rows * ROW.itemsize > len(body):
        return None
    groups = [Group(*_GROUP.unpack_from(body, number * _GROUP.size)) for number in range(trailer.groups)]
    rows = np.frombuffer(body, ROW, trailer.rows, at)
    counts = _counts(groups, rows)
    at += rows.nbytes
    if counts is None or at + sum(4 * n * each.block_tokens for n, each in zip(counts, groups, strict=True)) > len(
        body
    ):
        return None
    tokens: list[NDArray[np.int32]] = []
    for group, count in zip(groups, counts, strict=True):
        size = count * group.block_tokens
        tokens.append(np.frombuffer(body, "<i4", size, at).reshape(count, group.block_tokens))
        at += 4 * size
    return Table(groups, rows, tokens)


def _counts(groups: Sequence[Group], rows: "NDArray[np.void]") -> list[int] | None:
    """Rows of each group; None: they are none that this program writes."""
    good = all(0 < each.block_tokens <= MAX_BLOCK_TOKENS and each.hash_id in HASH_NAMES for each in groups)
    if not good or (rows["group"] >= len(groups)).any():
        return None
    return np.bincount(rows["group"], minlength=len(groups)).tolist()


def _unpack_encrypted(body: memoryview, trailer: Trailer, find: FindKey | None) -> Table | None:
    at = trailer.groups * _GROUP2.size
    if at + trailer.rows * ROW2.itemsize > len(body):
        return None
    unpacked = [_GROUP2.unpack_from(body, number * _GROUP2.size) for number in range(trailer.groups)]
    groups = [Group(*each[:4], key_id=b"" if each[4] == _BLANK else each[4]) for each in unpacked]
    short = np.frombuffer(body, ROW2, trailer.rows, at)
    counts = _counts(groups, short)
    if counts is None:
        return None
    rows = np.zeros(trailer.rows, ROW)
    for name in _SHARED:
        rows[name] = short[name]
    bound = _bound(trailer.segment, groups, short.tobytes())
    tokens: list[NDArray[np.int32]] = []
    locked: set[int] = set()
    at += short.nbytes
    for number, (group, count) in enumerate(zip(groups, counts, strict=True)):
        size = count * (2 * KEY_BYTES + 4 * group.block_tokens)
        length = size + (TAG_BYTES if group.key_id else 0)
        part = body[at : at + length]
        at += length
        if len(part) != length:
            return None
        plain = _opened(part, group, unpacked[number][5], bound + number.to_bytes(4, "little"), find)
        if plain == "key_missing":
            locked.add(number)
            plain = bytes(size)
        if plain is None or isinstance(plain, str):
            return None
        keys = np.frombuffer(plain, np.uint8, 2 * count * KEY_BYTES).reshape(2, count, KEY_BYTES)
        members = rows["group"] == number
        rows["key"][members], rows["parent"][members] = keys
        ids = np.frombuffer(plain, "<i4", count * group.block_tokens, 2 * count * KEY_BYTES)
        tokens.append(ids.reshape(count, group.block_tokens))
    return Table(groups, rows, tokens, frozenset(locked))


def _opened(
    part: memoryview, group: Group, nonce: bytes, extra: bytes, find: FindKey | None
) -> memoryview | bytearray | str | None:
    """A group's keys, parents and tokens; or "key_missing"; None: they are not what was sealed."""
    if not group.key_id:
        return part
    key = find(group.key_id) if find is not None else None
    if key is None:
        return "key_missing"
    plain = bytearray(len(part) - TAG_BYTES)
    return plain if key.open_into(nonce, part, extra, plain) else None


def pinned(rows: "NDArray[np.void]") -> NDArray[np.bool_]:
    """Of each row."""
    return (rows["flags"] & PINNED).astype(np.bool_)
