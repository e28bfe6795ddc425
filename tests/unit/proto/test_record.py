"""Segments of any version are read by every later one: golden files, and the offsets that docs/formats.md names."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.tiers import Hit, Record, Stored, Wanted
from kvterrace.kvstore.tiers.codec import PlanesLz4
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import PAGE_BYTES, Retention
from kvterrace.proto.footer import Trailer
from kvterrace.proto.record import DeviceState, RecordHeader, SegmentHeader, header_pages, is_foreign

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parents[2] / "golden" / "segment-v1.seg.gz"
SEGMENT_BYTES = 64 * PAGE_BYTES
IDENT = 0x1122334455667788
WALL_S = 1_750_000_000.125


def block(number: int) -> Record:
    """Sizes around a page, one namespace with short keys, one block of 1024 tokens; two-byte elements, compressible."""
    size = (4096, 4094, 20_000, 4098)[number]
    block_tokens = (16, 16, 1024, 1)[number]
    payload = np.zeros(size, np.uint8)
    payload[::2] = np.arange(len(payload[::2])) * (number + 3) % 251
    short = number == 3
    return Record(
        fingerprint=bytes([0xF0 + short]) * 32,
        key=bytes([number + 1]) * (16 if short else 32),
        parent=bytes([0xA0 + number]) * 32,
        tokens=np.arange(block_tokens, dtype="<i4").tobytes(),
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
        entropy=lambda count: IDENT.to_bytes(count, "little"),
        segment_bytes=SEGMENT_BYTES,
    )
    for number in range(4):
        assert await tier.put([block(number)], deadline_s=10) == [Stored()]
    assert await tier.drop([block(0).key]) == [True]
    await tier.close()
    return (path / f"{1:016x}.seg").read_bytes()


def without_padding(content: bytes) -> bytes:
    """The tier writes what it finds behind a block's end; it is not part of the format."""
    kept = bytearray(content)
    for page, end in ((2, 4096), (4, 4094)):
        kept[(page + 1) * PAGE_BYTES + end : (page + 2) * PAGE_BYTES] = bytes(PAGE_BYTES - end)
    return bytes(kept)


async def test_a_golden_segment_is_read_and_written_byte_for_byte(tmp_path):
    golden = gzip.decompress(GOLDEN.read_bytes())
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / f"{1:016x}.seg").write_bytes(golden)
    tier = NvmeTier.open([NvmePath(tmp_path / "old", 4 * SEGMENT_BYTES, 0)], segment_bytes=SEGMENT_BYTES)
    assert sorted(len(part.keys) for part in tier.inventory()) == [1, 1, 1]
    for number in range(1, 4):
        one = block(number)
        into = np.zeros(one.block_bytes, np.uint8)
        asked = Wanted(one.fingerprint, one.key, one.parent, one.tokens, one.block_bytes, into)
        assert await tier.get([asked], deadline_s=10) == [Hit(one.checksum)]
        assert (into == one.payload).all()
    await tier.close()
    assert without_padding(await written(tmp_path / "new")) == without_padding(golden)


def test_every_byte_is_where_the_document_says():
    """A reader that knows docs/formats.md and nothing else."""
    content = gzip.decompress(GOLDEN.read_bytes())
    page = lambda n: content[n * PAGE_BYTES : (n + 1) * PAGE_BYTES]  # noqa: E731
    last = len(content) // PAGE_BYTES - 1
    for head, magic, count in ((page(0), b"kvt-seg\0", 1), (page(2), b"kvt-rec\0", 1), (page(last), b"kvt-end\0", 1)):
        assert struct.unpack_from("<8sQH", head) == (magic, xxhash.xxh3_64_intdigest(head[16:]), count)
    assert struct.unpack_from("<QQQQ", page(0), 24) == (1, IDENT, SEGMENT_BYTES, int(WALL_S * 1000))
    groups, ident, first, rows, size, checksum = struct.unpack_from("<IQIIQQ", page(last), 20)
    assert (groups, ident, rows) == (4, IDENT, 4)
    footer = content[first * PAGE_BYTES :][:size]
    assert xxhash.xxh3_64_intdigest(footer) == checksum
    kinds = [struct.unpack_from("<32sIIB", footer, 48 * n)[1:] for n in range(groups)]
    assert kinds == [(16, 4096, 1), (16, 4094, 1), (1024, 20_000, 1), (1, 4098, 2)]
    at = 48 * groups
    for number in range(4):
        one = block(number)
        row = struct.unpack_from("<32s32sQQdIIHBBB", footer, at + 104 * number)
        key, parent, sequence, written_ms, ttl_s, begins, stored, group, codec, priority, flags = row
        assert (key, parent) == (one.key.ljust(32, b"\0"), one.parent)
        assert (sequence, written_ms, ttl_s) == (number + 1, int(WALL_S * 1000), one.retention.ttl_s)
        assert (priority, flags, group) == (one.retention.priority, int(one.retention.pinned), number)
        head = content[begins * PAGE_BYTES :]
        assert struct.unpack_from("<BBBBB", head, 18) == (
            1 + (number == 2),
            1 + (number == 3),
            codec,
            priority,
            flags,
        )
        assert struct.unpack_from("<QQQdIIII", head, 24) == (
            *(IDENT, sequence, written_ms, ttl_s, len(one.tokens) // 4, 2, one.block_bytes, stored),
        )
        assert head[88:184] == one.fingerprint + key + parent
        assert head[192 : 192 + len(one.tokens)] == one.tokens
        body = head[PAGE_BYTES * (1 + (number == 2)) :][:stored]
        assert struct.unpack_from("<QQ", head, 72) == (one.checksum, xxhash.xxh3_64_intdigest(body))
        assert codec == (number >= 2)  # only there does it save a page
        dead = content[PAGE_BYTES + begins // 8] >> begins % 8 & 1
        assert dead == (number == 0)
    assert footer.endswith(block(0).tokens + block(1).tokens + block(2).tokens + block(3).tokens)


def test_nothing_damaged_is_taken_for_whole():
    content = gzip.decompress(GOLDEN.read_bytes())
    first, record, last = content[:PAGE_BYTES], content[2 * PAGE_BYTES : 3 * PAGE_BYTES], content[-PAGE_BYTES:]
    for page, kind in ((first, SegmentHeader), (record, RecordHeader), (last, Trailer)):
        assert kind.unpack(memoryview(page)) is not None
        assert kind.unpack(memoryview(page + b"whatever lies behind")) is not None
        for at in (0, 7, 8, 15, 16, 20, 40, 100, 200, PAGE_BYTES - 1):
            damaged = bytearray(page)
            damaged[at] ^= 16
            assert kind.unpack(memoryview(damaged)) is None, at
        assert kind.unpack(memoryview(bytes(PAGE_BYTES))) is None
    assert not is_foreign(memoryview(bytes(PAGE_BYTES)))
    assert not is_foreign(memoryview(first))


@pytest.mark.parametrize(("block_tokens", "count"), [(1, 1), (976, 1), (977, 2), (1024, 2)])
def test_a_header_is_as_long_as_its_tokens_need(block_tokens, count):
    assert header_pages(block_tokens) == count
    tokens = np.arange(block_tokens, dtype="<i4").tobytes()
    header = RecordHeader(
        1, 0, 50, True, 7, 8, 9, 1.5, block_tokens, 2, 100, 100, 1, 1, *(bytes([n]) * 32 for n in (1, 2, 3))
    )
    out = memoryview(bytearray(b"x" * (count * PAGE_BYTES)))
    header.pack_into(out, tokens)
    assert RecordHeader.unpack(out) == (header, tokens)
    assert RecordHeader.unpack(out[: PAGE_BYTES * count - PAGE_BYTES + 4095]) is None


def test_the_state_page_says_how_much_was_written_on_which_day():
    page = DeviceState(20_000, 12_345).pack()
    assert struct.unpack_from("<QQ", page, 24) == (20_000, 12_345)
    assert DeviceState.unpack(memoryview(page)) == DeviceState(20_000, 12_345)
