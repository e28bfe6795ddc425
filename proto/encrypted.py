"""Encrypted records: their headers, and how their parts are bound together. The cipher is a RecordKey, made elsewhere.

A record has two parts that only the key opens, each with a nonce and a tag of its own: the stored bytes, and of the
header what tells the prompt (key, parent, token ids, checksum of the block). The rest of the header is in clear, has
both nonces and the tag of the stored bytes, and is the additional data of the header's hidden part: whoever changes a
bit of any of it is found out. Moving a record makes its hidden part anew, under the same key; the stored bytes stay.
"""

import struct
from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

import xxhash

from .frame import FRAME_BYTES, frame_into, framed
from .layout import PAGE_BYTES
from .record import ENCRYPTED_TOKENS_AT, ENCRYPTED_VERSION, PINNED, RECORD_TAG, RecordHeader

NONCE_BYTES = 24
TAG_BYTES = 16
Bytes: TypeAlias = bytes | bytearray | memoryview

_CLEAR = struct.Struct("<HBBBBBBQQQdIIII8sQ32s24s16s24s")
_TAG_AT = FRAME_BYTES + _CLEAR.size
_NONCE_AT = _TAG_AT - NONCE_BYTES
_HIDDEN_AT = _TAG_AT + TAG_BYTES
_HIDDEN = struct.Struct("<Q32s32s")
_BODY_TAG = b"kvt-pay\0"  # additional data of stored bytes; that of headers and footers begins with their magic

assert _HIDDEN_AT + _HIDDEN.size == ENCRYPTED_TOKENS_AT


class RecordKey(Protocol):
    """A key that encrypts and authenticates. Used from several threads at once."""

    @property
    def ident(self) -> bytes:
        """KEY_ID_BYTES bytes, not zeros."""
        ...

    def seal_into(self, plain: Bytes, extra: bytes, out: Bytes) -> bytes:
        """Fill `out`, TAG_BYTES longer than `plain`, with the encrypted bytes and the tag; the nonce, used once.
        extra: authenticated, not kept."""
        ...

    def open_into(self, nonce: bytes, sealed: Bytes, extra: bytes, out: Bytes) -> bool:
        """Fill `out`, TAG_BYTES shorter than `sealed`. False: it is not what was sealed; `out` is undefined then."""
        ...


FindKey: TypeAlias = Callable[[bytes], "RecordKey | None"]
"""The key with that id, of those at hand."""


class Sealed(NamedTuple):
    """How stored bytes were sealed: what the header has to say of it."""

    nonce: bytes
    tag: bytes


class EncryptedHeader(NamedTuple):
    """header: its clear fields; key, parent and the block's checksum are blank. body: of the stored bytes. nonce,
    bound, sealed: of the header's hidden part: its additional data, and itself with its tag."""

    header: RecordHeader
    body: Sealed
    nonce: bytes
    bound: bytes
    sealed: bytes

    @classmethod
    def unpack(cls, head: memoryview) -> "EncryptedHeader | None":
        """Of what begins with an encrypted record's header pages; None unless they are whole."""
        if len(head) < PAGE_BYTES:
            return None
        version, count, hash_id, codec, priority, flags, _, *rest = _CLEAR.unpack_from(head, FRAME_BYTES)
        if version != ENCRYPTED_VERSION or not count or not framed(head, RECORD_TAG, count):
            return None
        *numbers, key_id, stored_checksum, fingerprint, body_nonce, body_tag, nonce = rest
        hidden = (0, stored_checksum, fingerprint, bytes(32), bytes(32))
        header = RecordHeader._make((hash_id, codec, priority, bool(flags & PINNED), *numbers, *hidden, key_id))
        if not header.plausible or header.header_pages != count:
            return None
        end = ENCRYPTED_TOKENS_AT + 4 * header.block_tokens
        sealed = bytes(head[_HIDDEN_AT:end]) + bytes(head[_TAG_AT:_HIDDEN_AT])
        return cls(header, Sealed(body_nonce, body_tag), nonce, _bound(head), sealed)

    def open(self, key: RecordKey) -> tuple[RecordHeader, bytes] | None:
        """(header, packed tokens); None: not what was sealed with that key."""
        plain = bytearray(len(self.sealed) - TAG_BYTES)
        if not key.open_into(self.nonce, self.sealed, self.bound, plain):
            return None
        checksum, block_key, parent = _HIDDEN.unpack_from(plain)
        header = self.header._replace(block_checksum=checksum, key=block_key, parent=parent)
        return header, bytes(plain[_HIDDEN.size :])


def pack_encrypted(header: RecordHeader, tokens: bytes, key: RecordKey, body: Sealed, out: memoryview) -> None:
    """Fill `out`, which is as long as the header's pages. body: what seal_body said."""
    assert header.key_id == key.ident
    assert len(out) == header.header_pages * PAGE_BYTES
    assert len(tokens) == 4 * header.block_tokens
    hash_id, codec, priority, pinned, *numbers = header[:12]
    plain = _HIDDEN.pack(header.block_checksum, header.key, header.parent) + tokens
    sealed = bytearray(len(plain) + TAG_BYTES)
    first = (ENCRYPTED_VERSION, header.header_pages, hash_id, codec, priority, PINNED if pinned else 0, 0)
    last = (header.key_id, header.stored_checksum, header.fingerprint, *body)
    _CLEAR.pack_into(out, FRAME_BYTES, *first, *numbers, *last, bytes(NONCE_BYTES))
    nonce = key.seal_into(plain, _bound(out), sealed)
    out[_NONCE_AT:_TAG_AT] = nonce
    end = _HIDDEN_AT + len(plain)
    out[_HIDDEN_AT:end] = sealed[:-TAG_BYTES]
    out[_TAG_AT:_HIDDEN_AT] = sealed[-TAG_BYTES:]
    out[end:] = bytes(len(out) - end)
    frame_into(out, RECORD_TAG)


def _bound(head: memoryview) -> bytes:
    """The clear fields, but the hidden part's own nonce, which needs no more than to be its nonce."""
    return RECORD_TAG + bytes(head[FRAME_BYTES:_NONCE_AT])


def seal_body(key: RecordKey, plain: Bytes, out: memoryview) -> Sealed:
    """Fill `out` with the encrypted bytes of `plain`, as many, and behind them the tag, which is for the header."""
    nonce = key.seal_into(plain, _BODY_TAG, out)
    return Sealed(nonce, bytes(out[-TAG_BYTES:]))


def open_body(key: RecordKey, sealed: Sealed, area: memoryview, out: Bytes) -> bool:
    """Fill `out` with what was sealed. area: the encrypted bytes and TAG_BYTES of room behind them. False: it is not
    what was sealed; `out` is undefined then."""
    area[-TAG_BYTES:] = sealed.tag
    return key.open_into(sealed.nonce, area, _BODY_TAG, out)


def seal_record(key: RecordKey, header: RecordHeader, tokens: bytes, stored: Bytes) -> bytes:
    """A record by itself: header pages and encrypted stored bytes, without padding. header: as for a clear record."""
    size = header.stored_bytes
    header = header._replace(key_id=key.ident)
    head = header.header_pages * PAGE_BYTES
    out = bytearray(head + size + TAG_BYTES)
    view = memoryview(out)
    body = seal_body(key, stored, view[head:])
    header = header._replace(stored_checksum=xxhash.xxh3_64_intdigest(view[head : head + size]))
    pack_encrypted(header, tokens, key, body, view[:head])
    return bytes(view[: head + size])


def open_record(find: FindKey, record: memoryview) -> tuple[RecordHeader, bytes, bytes] | str:
    """(header, tokens, stored bytes) of what seal_record made; or why not: "key_missing", or "corrupt", which is also
    what it is when the key does not fit."""
    found = EncryptedHeader.unpack(record)
    if found is None or len(record) != found.header.header_pages * PAGE_BYTES + found.header.stored_bytes:
        return "corrupt"
    key = find(found.header.key_id)
    if key is None:
        return "key_missing"
    opened = found.open(key)
    plain = bytearray(found.header.stored_bytes)
    area = memoryview(bytearray(record[found.header.header_pages * PAGE_BYTES :]) + bytes(TAG_BYTES))
    if opened is None or not open_body(key, found.body, area, plain):
        return "corrupt"
    return *opened, bytes(plain)
