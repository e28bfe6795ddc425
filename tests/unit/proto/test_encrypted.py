"""Encrypted segments are read by every later version: a golden file, and the offsets that docs/formats.md names."""

import gzip
import hashlib
import struct
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.security.keyring import KeyRing, make
from kvterrace.kvstore.tiers import Hit, Record, Stored, Wanted
from kvterrace.kvstore.tiers.codec import PlanesLz4
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import PAGE_BYTES, Retention
from kvterrace.proto.encrypted import EncryptedHeader, open_record, seal_record
from kvterrace.proto.record import RecordHeader, header_pages

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parents[2] / "golden" / "segment-v2.seg.gz"
SEGMENT_BYTES = 64 * PAGE_BYTES
IDENT = 0x1122334455667788
WALL_S = 1_750_000_000.125
TENANTS = {b"\xf0" * 32: "alice", b"\xf1" * 32: "bob", b"\xf2" * 32: "carol"}
SECRETS = {"alice": "0a" * 32, "bob": "0b" * 32}


def ring() -> KeyRing:
    """Nonces from a counter, so that the same blocks make the same file."""
    numbers = count()
    keys = {tenant: [secret] for tenant, secret in SECRETS.items()} | {"carol": ["clear"]}
    return make(keys, "test", entropy=lambda size: hashlib.sha256(str(next(numbers)).encode()).digest()[:size])


def block(number: int) -> Record:
    """One page raw, one compressible of 1024 tokens, one of another tenant with short keys, one in clear."""
    size = (4096, 20_000, 100, 4096)[number]
    block_tokens = (16, 1024, 1, 16)[number]
    payload = np.zeros(-(-size // PAGE_BYTES) * PAGE_BYTES, np.uint8)[:size]
    payload[::2] = np.arange(len(payload[::2])) * (number + 3) % 251
    short = number == 2
    return Record(
        fingerprint=bytes([(0xF0, 0xF0, 0xF1, 0xF2)[number]]) * 32,
        key=bytes([number + 1]) * (16 if short else 32),
        parent=bytes([0xA0 + number]) * 32,
        tokens=np.arange(1000, 1000 + block_tokens, dtype="<i4").tobytes(),
        block_bytes=size,
        payload=payload,
        checksum=xxhash.xxh3_64_intdigest(payload),
        hash_name="xxh3-128" if short else "sha256",
        retention=Retention(priority=10 * number, ttl_s=0.5 * number, pinned=number == 1),
        itemsize=2,
    )


async def written(path: Path) -> bytes:
    """Today's program writes the golden blocks, drops one, and seals."""
    tier = NvmeTier.open(
        [NvmePath(path, 4 * SEGMENT_BYTES, min_free_bytes=0)],
        codec=PlanesLz4(),
        wall=lambda: WALL_S,
        entropy=lambda size: IDENT.to_bytes(size, "little"),
        segment_bytes=SEGMENT_BYTES,
        keys=ring(),
        tenant_of=TENANTS.get,
    )
    for number in range(4):
        assert await tier.put([block(number)], deadline_s=10) == [Stored()]
    assert await tier.drop([block(0).key]) == [True]
    await tier.close()
    return (path / f"{1:016x}.seg").read_bytes()


async def test_a_golden_segment_is_read_and_written_byte_for_byte(tmp_path):
    golden = gzip.decompress(GOLDEN.read_bytes())
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / f"{1:016x}.seg").write_bytes(golden)
    where = NvmePath(tmp_path / "old", 4 * SEGMENT_BYTES, 0)
    tier = NvmeTier.open([where], segment_bytes=SEGMENT_BYTES, keys=ring(), tenant_of=TENANTS.get)
    assert sorted(len(part.keys) for part in tier.inventory()) == [1, 1, 1]
    for number in range(1, 4):
        one = block(number)
        into = np.zeros(one.block_bytes, np.uint8)
        asked = Wanted(one.fingerprint, one.key, one.parent, one.tokens, one.block_bytes, into)
        assert await tier.get([asked], deadline_s=10) == [Hit(one.checksum)]
        assert (into == one.payload).all()
    await tier.close()
    assert await written(tmp_path / "new") == golden


def opened(tenant: str, nonce: bytes, sealed: bytes, extra: bytes) -> bytes:
    key = ring().writing(tenant)
    out = bytearray(len(sealed) - 16)
    assert key.open_into(nonce, sealed, extra, out)
    return bytes(out)


def test_every_byte_of_a_record_is_where_the_document_says():
    """A reader that knows docs/formats.md, the cipher and nothing else."""
    content = gzip.decompress(GOLDEN.read_bytes())
    assert struct.unpack_from("<H", content, 16) == (2,)
    for at, number in ((2, 0), (4, 1), (7, 2)):
        one, tenant = block(number), TENANTS[block(number).fingerprint]
        head = content[at * PAGE_BYTES :]
        pages = 1 + (number == 1)
        checksum = xxhash.xxh3_64_intdigest(head[16 : pages * PAGE_BYTES])
        assert struct.unpack_from("<8sQHB", head) == (b"kvt-rec\0", checksum, 2, pages)
        size, ident, stored_checksum = struct.unpack_from("<I8sQ", head, 68)
        assert ident == hashlib.sha256(b"kvterrace key id\0" + bytes.fromhex(SECRETS[tenant])).digest()[:8]
        assert head[88:120] == one.fingerprint
        body = head[pages * PAGE_BYTES :][:size]
        assert xxhash.xxh3_64_intdigest(body) == stored_checksum
        assert not any(head[pages * PAGE_BYTES + size : (pages + -(-size // PAGE_BYTES)) * PAGE_BYTES])
        stored = opened(tenant, head[120:144], body + head[144:160], b"kvt-pay\0")
        again = np.zeros(one.block_bytes, np.uint8)
        if head[20]:
            PlanesLz4().decode(np.frombuffer(stored, np.uint8), again)
        assert (again.tobytes() if head[20] else stored) == one.payload.tobytes()
        end = 272 + len(one.tokens)
        hidden = opened(tenant, head[160:184], head[200:end] + head[184:200], b"kvt-rec\0" + head[16:160])
        assert hidden == one.checksum.to_bytes(8, "little") + one.key.ljust(32, b"\0") + one.parent + one.tokens
    clear = RecordHeader.unpack(memoryview(content)[9 * PAGE_BYTES :])
    assert clear is not None
    assert clear[0].key == block(3).key


def test_every_byte_of_a_footer_is_where_the_document_says():
    content = gzip.decompress(GOLDEN.read_bytes())
    last = content[-PAGE_BYTES:]
    version, groups, ident, first, rows, size = struct.unpack_from("<H2xIQIIQ", last, 16)
    assert (version, groups, ident, rows) == (2, 4, IDENT, 4)
    footer = content[first * PAGE_BYTES :][:size]
    heads = [footer[80 * n : 80 * n + 80] for n in range(4)]
    short = footer[320 : 320 + 160]
    clear = b"".join(head[:56] + bytes(24) for head in heads)
    digest = hashlib.sha256(clear + short).digest()
    at = 480
    for number, head in enumerate(heads):
        one = block(number)
        tenant = TENANTS[one.fingerprint]
        hash_id = 1 + (number == 2)
        assert struct.unpack_from("<32sIIB", head) == (one.fingerprint, len(one.tokens) // 4, one.block_bytes, hash_id)
        length = 64 + len(one.tokens) + 16 * (number < 3)
        part = footer[at : at + length]
        at += length
        if number < 3:
            extra = b"kvt-end\0" + IDENT.to_bytes(8, "little") + digest + number.to_bytes(4, "little")
            part = opened(tenant, head[56:80], part, extra)
        else:
            assert head[48:80] == bytes(32)
        assert part == one.key.ljust(32, b"\0") + one.parent + one.tokens
        sequence, _, ttl_s, page, _, group, codec, priority, flags = struct.unpack_from(
            "<QQdIIHBBB", short, 40 * number
        )
        assert (sequence, ttl_s, page, group) == (number + 1, one.retention.ttl_s, (2, 4, 7, 9)[number], number)
        assert (codec, priority, flags) == (number == 1, one.retention.priority, one.retention.pinned)
    assert at == size


@pytest.mark.parametrize(("block_tokens", "pages"), [(1, 1), (956, 1), (957, 2), (1024, 2)])
def test_a_record_by_itself_is_opened_by_its_key_only(block_tokens, pages):
    """What a remote store keeps: the record without padding."""
    key = ring().writing("alice")
    tokens = np.arange(block_tokens, dtype="<i4").tobytes()
    keys = (bytes([n]) * 32 for n in (1, 2, 3))
    header = RecordHeader(1, 0, 50, True, 7, 8, 9, 1.5, block_tokens, 2, 5000, 5000, 11, 0, *keys)
    made = seal_record(key, header, tokens, b"s" * 5000)
    assert header_pages(block_tokens, encrypted=True) == pages
    assert len(made) == pages * PAGE_BYTES + 5000
    found = open_record(ring().find, memoryview(made))
    assert isinstance(found, tuple)
    assert found[0]._replace(key_id=b"", stored_checksum=0) == header
    assert found[1:] == (tokens, b"s" * 5000)
    assert open_record(lambda _: None, memoryview(made)) == "key_missing"
    assert open_record(lambda _: ring().writing("bob"), memoryview(made)) == "corrupt"
    for at in (0, 8, 16, 30, 80, 90, 130, 150, 170, 190, 210, 280, pages * PAGE_BYTES, len(made) - 1):
        changed = bytearray(made)
        changed[at] ^= 4
        assert open_record(ring().find, memoryview(changed)) == "corrupt", at
    assert open_record(ring().find, memoryview(made[:-1])) == "corrupt"
    assert RecordHeader.unpack(memoryview(made)) is None
    assert EncryptedHeader.unpack(memoryview(made[: pages * PAGE_BYTES - 1])) is None
