"""Whatever lies on a disk: reading it gives None or what was written, and never raises. Files of segments too."""

import contextlib
import random

import numpy as np
import pytest
import xxhash
from hypothesis import strategies as st
from kvterrace.kvstore.errors import NvmeError
from kvterrace.kvstore.security.keyring import make
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import PAGE_BYTES
from kvterrace.proto.encrypted import EncryptedHeader, open_record, seal_record
from kvterrace.proto.footer import TableBuilder, Trailer
from kvterrace.proto.record import DeviceState, RecordHeader, SegmentHeader, is_foreign

pytestmark = pytest.mark.unit

RING = make({"alice": ["11" * 32]}, "test")
KEY = RING.writing("alice")
SEGMENT_BYTES = 64 * PAGE_BYTES
MAGICS = [b"kvt-seg\0", b"kvt-rec\0", b"kvt-end\0", b"kvt-sta\0"]


def header(number: int, block_tokens: int = 16, **other) -> tuple[RecordHeader, bytes]:
    fields = {
        "hash_id": 1,
        "codec": 0,
        "priority": 50,
        "pinned": False,
        "segment": 7,
        "sequence": number,
        "written_ms": 1,
        "ttl_s": 0.0,
        "block_tokens": block_tokens,
        "item_bytes": 2,
        "block_bytes": 100,
        "stored_bytes": 100,
        "block_checksum": 5,
        "stored_checksum": 6,
        "fingerprint": b"f" * 32,
        "key": bytes([number % 256]) * 32,
        "parent": b"p" * 32,
    } | other
    return RecordHeader(**fields), np.arange(block_tokens, dtype="<i4").tobytes()


def clear_head(block_tokens: int) -> bytes:
    made, tokens = header(1, block_tokens)
    out = bytearray(made.header_pages * PAGE_BYTES)
    made.pack_into(memoryview(out), tokens)
    return bytes(out)


def footer(version: int, page: int = 40) -> bytes:
    builder = TableBuilder(version)
    for number in range(5):
        key_id = KEY.ident if version == 2 and number % 2 else b""
        made, tokens = header(number, (16, 1)[number % 2], key_id=key_id)
        builder.add(made, 3 + 2 * number, tokens)
    return builder.pack(7, page, RING.find)


SEALED = seal_record(KEY, *header(1), b"s" * 100)
PAGES = [
    clear_head(16),
    clear_head(1024),
    SEALED,
    seal_record(KEY, *header(2, 1024), b"t" * 100),
    footer(1),
    footer(2),
    SegmentHeader(1, 7, SEGMENT_BYTES, 3).pack(),
    SegmentHeader(1, 7, SEGMENT_BYTES, 3, 2).pack(),
    DeviceState(3, 4).pack(),
]


def refit(content: bytearray, magic: bytes | None, count: int) -> None:
    """Give whole pages the magic and the checksum of a frame: nothing but the fields themselves is left to doubt."""
    if magic is not None and len(content) >= 16:
        content[:8] = magic
        content[8:16] = xxhash.xxh3_64_intdigest(content[16 : count * PAGE_BYTES]).to_bytes(8, "little")


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A page of ours with some bytes changed, cut or longer, its checksum made to fit or not; or any bytes at all."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=600)) + bytes(draw(st.sampled_from([0, PAGE_BYTES, 2 * PAGE_BYTES])))
    content = bytearray(draw(st.sampled_from(PAGES)))
    at = draw(st.sampled_from([0, len(content) - PAGE_BYTES])) if len(content) > PAGE_BYTES else 0
    for _ in range(draw(st.integers(0, 4))):
        where = draw(st.integers(16, 340))
        content[(at + where) % len(content)] = draw(st.sampled_from([0, 1, 2, 3, 127, 128, 255]))
    if draw(st.booleans()):
        refit(content, draw(st.sampled_from([None, *MAGICS])), draw(st.integers(1, 2)))
        tail = content[-PAGE_BYTES:]
        refit(tail, b"kvt-end\0", 1)
        content[-PAGE_BYTES:] = tail
    return bytes(content[: draw(st.sampled_from([len(content), 0, 15, 16, 40, 200, PAGE_BYTES - 1, PAGE_BYTES]))])


def parse(content: bytes) -> None:
    view = memoryview(content)
    for kind in (SegmentHeader, DeviceState):
        kind.unpack(view)
    is_foreign(view)
    found = RecordHeader.unpack(view)
    if found is not None:
        assert len(found[1]) == 4 * found[0].block_tokens
    sealed = EncryptedHeader.unpack(view)
    if sealed is not None:
        opened = sealed.open(KEY)
        if opened is not None:
            assert any(
                sealed.header[2:12] == EncryptedHeader.unpack(memoryview(each)).header[2:12] for each in PAGES[2:4]
            )
    open_record(RING.find, view)
    open_record(lambda _: None, view)
    trailer = Trailer.unpack(view[-PAGE_BYTES:])
    if trailer is not None:
        for find in (RING.find, None, lambda _: None):
            table = trailer.table(view[: trailer.body_bytes], find)
            if table is not None:
                assert len(table.rows) == sum(map(len, table.tokens))


def test_no_page_makes_a_parser_fail(fuzz):
    for each in PAGES:
        parse(each)
    assert fuzz(parse, mutated(), share=0.4) >= 100


def test_a_footer_with_any_fields_and_fitting_checksums_is_read_or_not_believed(fuzz):
    """Groups, rows and tokens of any numbers: what a checksum cannot tell from ours."""

    def check(example: tuple[int, list[tuple[int, int]], int, int, int]) -> None:
        version, changes, groups, rows, body_bytes = example
        content = bytearray(footer(version))
        for at, value in changes:
            content[at % (len(content) - PAGE_BYTES)] = value
        trailer = Trailer.unpack(memoryview(content)[-PAGE_BYTES:])
        body = memoryview(content)[: max(0, min(len(content), trailer.body_bytes + body_bytes))]
        trailer = trailer._replace(
            groups=trailer.groups + groups,
            rows=max(0, trailer.rows + rows),
            body_bytes=len(body),
            checksum=xxhash.xxh3_64_intdigest(body),
        )
        table = trailer.table(body, RING.find)
        if table is not None:
            assert len(table.rows) == sum(map(len, table.tokens))
            assert (table.rows["page"] < trailer.page).all()

    near = st.sampled_from([0, 0, 0, 1, 3, 60_000])
    less = st.sampled_from([0, 0, 0, -1, -40, -4096, 1])
    changes = st.lists(st.tuples(st.integers(0, 1 << 11), st.integers(0, 255)), max_size=5)
    fuzz(check, st.tuples(st.sampled_from([1, 2]), changes, near, less, less), share=0.2)


def changed_footer(rng: random.Random, version: int, page: int) -> bytes:
    """A footer to lie at `page`, with some bits changed and checksums that fit."""
    content = bytearray(footer(version, page))
    trailer = Trailer.unpack(memoryview(content)[-PAGE_BYTES:])
    for _ in range(rng.randrange(4)):
        content[rng.randrange(trailer.body_bytes)] ^= 1 << rng.randrange(8)
    last = content[-PAGE_BYTES:]
    last[48:56] = xxhash.xxh3_64_intdigest(content[: trailer.body_bytes]).to_bytes(8, "little")
    refit(last, b"kvt-end\0", 1)
    return bytes(content[:-PAGE_BYTES] + last)


def test_no_segment_file_keeps_a_tier_from_starting(fuzz, tmp_path):
    """Pages of ours in any order, changed or not, are a file that is read, left alone or removed."""
    rounds = iter(range(1 << 30))

    def check(example: tuple[bool, int, list[int]]) -> None:
        keyed, seed, order = example
        rng = random.Random(seed)
        content = bytearray(SegmentHeader(1, 7, SEGMENT_BYTES, 3, 2 if keyed else 1).pack() + bytes(PAGE_BYTES))
        for number in order:
            page = bytearray(PAGES[number])
            for _ in range(rng.randrange(3)):
                page[rng.randrange(16, 340)] ^= 1 << rng.randrange(8)
            refit(page, bytes(page[:8]) if rng.random() < 0.8 else None, 1)
            content += page + bytes(-len(page) % PAGE_BYTES)
        content = content[: SEGMENT_BYTES // 2]
        if rng.random() < 0.5:
            content += bytes(max(0, 12 * PAGE_BYTES - len(content)))
            content += changed_footer(rng, 2 if keyed else 1, len(content) // PAGE_BYTES)
        where = tmp_path / str(next(rounds))
        where.mkdir()
        path = where / f"{1:016x}.seg"
        path.write_bytes(content)
        with contextlib.suppress(NvmeError):
            tier = NvmeTier.open(
                [NvmePath(where, 4 * SEGMENT_BYTES, 0)], segment_bytes=SEGMENT_BYTES, keys=RING if keyed else None
            )
            for part in tier.inventory():
                assert len(part.keys) == len(part.tokens) > 0
            tier.check()
            for lock in tier._locks:
                tier._options.files.close(lock)
        path.unlink(missing_ok=True)

    fuzz(check, st.tuples(st.booleans(), st.integers(0, 1 << 30), st.lists(st.integers(0, 8), max_size=8)), share=0.4)
