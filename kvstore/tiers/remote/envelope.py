"""Envelope: what is in a remote object and what it is called: a record as in a segment, without padding.

In clear: header page(s), then the block's bytes. Where there are keys: the same, encrypted with the tenant's, and the
name is made with the key too, so that whoever can list the store does not find out which prompts are in it. A tenant
whose key is gone has nothing there any more that anybody could read; a new key does not find what the old one named.
"""

from dataclasses import dataclass
from enum import Enum

import xxhash

from ....proto import PAGE_BYTES
from ....proto.encrypted import TAG_BYTES, EncryptedHeader, RecordKey, open_body, seal_record
from ....proto.record import HASH_IDS, KEY_BYTES, VERSION, RecordHeader, header_pages
from ...security.keyring import TenantKey
from ..base import Record, Wanted
from ..nvme.cipher import Cipher
from .objects import Found, Name

FORMAT = f"kvterrace-{VERSION}"
"""What all names begin with: another format's objects are not this one's to judge."""


class Verdict(Enum):
    GOOD = "good"
    OTHER = "other"  # a sound block, but not the one that was asked for
    TORN = "torn"
    FLIPPED = "flipped"
    FOREIGN = "foreign"  # not what its name says


@dataclass(frozen=True, slots=True)
class Packed:
    """An object to write. checksum: xxh3-64 of the payload."""

    head: bytes
    payload: memoryview
    checksum: int


class Reading:
    """A block being read: head and payload are to be filled, then `check` says what came. Decrypting, it works for a
    while: not on the event loop."""

    def __init__(self, wanted: Wanted, key: RecordKey | None) -> None:
        self._wanted = wanted
        self._key = key
        self._into = wanted.into.data[: wanted.block_bytes]
        size = header_pages(len(wanted.tokens) // 4, encrypted=key is not None) * PAGE_BYTES
        self.head = memoryview(bytearray(size))
        self._area = memoryview(bytearray(wanted.block_bytes + TAG_BYTES)) if key is not None else None

    @property
    def payload(self) -> memoryview:
        return self._into if self._area is None else self._area[:-TAG_BYTES]

    @property
    def works(self) -> bool:
        """Whether `check` takes a while."""
        return self._key is not None

    def check(self, found: Found) -> tuple[Verdict, int]:
        """(what was read, the block's checksum)."""
        if found.size_bytes < len(self.head):
            return Verdict.TORN, 0
        return self._check_clear(found) if self._area is None else self._check_sealed(found, self._area)

    def _check_clear(self, found: Found) -> tuple[Verdict, int]:
        unpacked = RecordHeader.unpack(self.head)
        if unpacked is None:
            return Verdict.FLIPPED, 0
        verdict = self._identify(*unpacked, found)
        header = unpacked[0]
        if verdict is Verdict.GOOD and not found.checksum == header.stored_checksum == header.block_checksum:
            verdict = Verdict.FLIPPED
        return verdict, header.block_checksum

    def _check_sealed(self, found: Found, area: memoryview) -> tuple[Verdict, int]:
        assert self._key is not None
        sealed = EncryptedHeader.unpack(self.head)
        if sealed is None or sealed.header.key_id != self._key.ident:
            return Verdict.FLIPPED, 0
        opened = sealed.open(self._key)
        if opened is None:
            return Verdict.FLIPPED, 0
        verdict = self._identify(*opened, found)
        if verdict is not Verdict.GOOD:
            return verdict, 0
        checksum = opened[0].block_checksum
        if found.checksum != sealed.header.stored_checksum or not open_body(self._key, sealed.body, area, self._into):
            return Verdict.FLIPPED, 0
        return (Verdict.GOOD if xxhash.xxh3_64_intdigest(self._into) == checksum else Verdict.FLIPPED), checksum

    def _identify(self, header: RecordHeader, tokens: bytes, found: Found) -> Verdict:
        wanted = self._wanted
        if (header.fingerprint, header.key) != (wanted.fingerprint, _padded(wanted.key)) or header.codec:
            return Verdict.FOREIGN
        asked = (_padded(wanted.parent), wanted.tokens, wanted.block_bytes)
        if (header.parent, tokens, header.block_bytes) != asked:
            return Verdict.OTHER
        whole = found.size_bytes == len(self.head) + header.stored_bytes and header.stored_bytes == header.block_bytes
        return Verdict.GOOD if whole else Verdict.TORN


class Envelope:
    """cipher: None = everything is in clear."""

    def __init__(self, cipher: Cipher | None = None) -> None:
        self._cipher = cipher

    def name(self, fingerprint: bytes, key: bytes, ordinal: int = 0) -> Name | str:
        """Of a block; or why there can be none: "no_tenant", "no_key", "corrupt" (it names no block)."""
        name = Name(fingerprint, key, ordinal)
        if not name.valid:
            return "corrupt"
        own = self._key(fingerprint)
        if isinstance(own, TenantKey):
            return Name(fingerprint, bytes.fromhex(own.name(key)), ordinal)
        return own or name

    def reading(self, wanted: Wanted) -> Reading:
        """For a block that has a name."""
        key = self._key(wanted.fingerprint)
        assert not isinstance(key, str)
        return Reading(wanted, key)

    def seals(self, record: Record) -> bool:
        """Whether packing it takes a while."""
        return self._key(record.fingerprint) is not None

    def pack(self, record: Record, wall_s: float) -> Packed | None:
        """For a block that has a name; None: payload and checksum do not fit. Not on the event loop if it seals."""
        payload = record.payload.data[: record.block_bytes]
        header, key = _header(record, wall_s), self._key(record.fingerprint)
        assert not isinstance(key, str)
        size = header_pages(header.block_tokens, encrypted=key is not None) * PAGE_BYTES
        if key is None:
            head = bytearray(size)
            header.pack_into(memoryview(head), record.tokens)
            return Packed(bytes(head), payload, record.checksum)
        if xxhash.xxh3_64_intdigest(payload) != record.checksum:
            return None
        sealed = memoryview(seal_record(key, header, record.tokens, payload))
        return Packed(bytes(sealed[:size]), sealed[size:], xxhash.xxh3_64_intdigest(sealed[size:]))

    def _key(self, fingerprint: bytes) -> TenantKey | str | None:
        """None: in clear; a text: why there is nothing of that namespace here."""
        found = self._cipher.writing(fingerprint) if self._cipher is not None else None
        assert found is None or isinstance(found, str | TenantKey), "keys that make no names"
        return found


def _header(record: Record, wall_s: float) -> RecordHeader:
    return RecordHeader(
        hash_id=HASH_IDS[record.hash_name],
        codec=0,
        priority=record.retention.priority,
        pinned=record.retention.pinned,
        segment=0,
        sequence=0,
        written_ms=int(wall_s * 1e3),
        ttl_s=record.retention.ttl_s,
        block_tokens=len(record.tokens) // 4,
        item_bytes=record.itemsize,
        block_bytes=record.block_bytes,
        stored_bytes=record.block_bytes,
        block_checksum=record.checksum,
        stored_checksum=record.checksum,
        fingerprint=record.fingerprint,
        key=_padded(record.key),
        parent=_padded(record.parent),
    )


def _padded(key: bytes) -> bytes:
    return key.ljust(KEY_BYTES, b"\0")
