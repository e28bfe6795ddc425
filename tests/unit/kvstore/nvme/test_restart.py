"""What was answered Stored is there after a restart, a kill, a torn tail; and nothing else is."""

import errno
import os
import struct

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.tiers import Hit, Stored
from kvterrace.kvstore.tiers.nvme import OsFiles
from kvterrace.proto import Retention

from .shelf import (
    BLOCK_BYTES,
    PAGE,
    SPACE,
    as_killed,
    files_bytes,
    held,
    key,
    numbers,
    open_tier,
    overwrite,
    record,
    segments,
    slot,
    wanted,
)

pytestmark = pytest.mark.unit


async def stored(tier, *records):
    assert await tier.put(records, deadline_s=10) == [Stored()] * len(records)


@pytest.mark.parametrize("how", ["close", "kill"])
async def test_every_block_is_found_again_with_all_that_was_said_about_it(tmp_path, how):
    records = [record(number) for number in range(60)]
    tier = open_tier(tmp_path / "a", wall=lambda: 1000.25)
    for at in range(0, 60, 7):
        await stored(tier, *records[at : at + 7])
    path = tmp_path / "a" if how == "close" else as_killed(tmp_path / "a", tmp_path / "b")
    await tier.close()
    again = open_tier(path)
    (found,) = again.inventory()
    assert (found.fingerprint, found.hash_name) == (SPACE, "sha256")
    assert (found.block_tokens, found.block_bytes) == (16, BLOCK_BYTES)
    assert [row.tobytes() for row in found.keys] == [each.key for each in records]  # oldest first
    assert [row.tobytes() for row in found.parents] == [each.parent for each in records]
    assert [row.tobytes() for row in found.tokens] == [each.tokens for each in records]
    said = zip(found.priority.tolist(), found.ttl_s.tolist(), found.pinned.tolist(), strict=True)
    assert [Retention(*row) for row in said] == [each.retention for each in records]
    assert found.expires_s.tolist() == [1000.25 + 60.5 if n % 2 else float("inf") for n in range(60)]
    assert (np.diff(found.order.astype(np.int64)) > 0).all()
    assert await held(again, records) == 60
    await stored(again, record(60))  # and it goes on
    assert await held(again, [record(60)]) == 1
    again.check()
    await again.close()


async def test_all_live_bytes_count_after_a_restart(tmp_path):
    """A cap that starts from zero is no cap."""
    tier = open_tier(tmp_path / "a")
    await stored(tier, *[record(number) for number in range(30)])
    await tier.drop([key(3)])
    before = tier.usage()
    await tier.close()
    again = open_tier(tmp_path / "a")
    after = again.usage()
    assert (after.blocks, after.live_bytes) == (29, before.live_bytes)
    assert files_bytes(tmp_path / "a") <= after.used_bytes
    await again.close()


async def test_a_torn_record_costs_itself_and_not_what_was_written_after_it(tmp_path):
    """Requests in flight end in any order: a hole in the open segment is not its end."""
    tier = open_tier(tmp_path / "a")
    for number in range(6):
        await stored(tier, record(number))
    path = as_killed(tmp_path / "a", tmp_path / "b")
    (segment,) = segments(path)
    _, known, ordinal = tier._index.find(key(2))
    overwrite(segment, known.pages[ordinal] * PAGE, bytes(PAGE))  # its header never came
    overwrite(segment, (known.pages[ordinal + 2] + 1) * PAGE, b"torn")  # nor did all of another's payload
    again = open_tier(path)
    assert numbers(again) == {0, 1, 3, 5}
    await tier.close()
    await again.close()


async def test_a_flipped_footer_is_not_believed(tmp_path):
    tier = open_tier(tmp_path / "a")
    await stored(tier, *[record(number) for number in range(10)])
    await tier.close()
    (segment,) = segments(tmp_path / "a")
    overwrite(segment, -2 * PAGE + 50, b"flip")
    again = open_tier(tmp_path / "a")
    assert numbers(again) == set(range(10))
    assert await held(again, [record(number) for number in range(10)]) == 10
    await again.close()


@pytest.mark.parametrize("cut", [1, PAGE, 5 * PAGE, 20 * PAGE])
async def test_a_truncated_file_gives_what_is_whole_in_it(tmp_path, cut):
    tier = open_tier(tmp_path / "a")
    await stored(tier, *[record(number) for number in range(10)])
    await tier.close()
    (segment,) = segments(tmp_path / "a")
    os.truncate(segment, segment.stat().st_size - cut)
    again = open_tier(tmp_path / "a")
    found = numbers(again)
    assert found == set(range(len(found)))
    assert len(found) >= 10 - cut // (3 * PAGE) - 1
    assert await held(again, [record(number) for number in range(10)]) == len(found)
    await again.close()


async def test_a_payload_that_looks_like_a_record_of_its_segment_is_not_taken_for_one(tmp_path):
    """KV bytes are other people's data; even a copy of a real record inside a block must stay a payload."""
    tier = open_tier(tmp_path / "a")
    await stored(tier, record(1, PAGE))
    _, known, ordinal = tier._index.find(key(1))
    copy = known.path.read_bytes()[known.pages[ordinal] * PAGE :][: 2 * PAGE]
    await tier.drop([key(1)])
    await tier.flush(deadline_s=10)
    decoy = slot(4 * PAGE)
    decoy[PAGE : 3 * PAGE] = np.frombuffer(copy, np.uint8)
    checksum = xxhash.xxh3_64_intdigest(decoy.tobytes())
    await stored(tier, record(2, 4 * PAGE, payload=decoy, checksum=checksum))
    again = open_tier(as_killed(tmp_path / "a", tmp_path / "b"))
    assert numbers(again) == {2}
    await tier.close()
    await again.close()


async def test_the_last_copy_of_a_key_is_the_one_that_counts(tmp_path):
    tier = open_tier(tmp_path / "a")
    first, last = Retention(priority=1), Retention(priority=99)
    await stored(tier, record(1, retention=first), record(2))
    await tier.drop([key(1)])  # not yet on the disk when the process dies
    await stored(tier, record(1, retention=last))
    again = open_tier(as_killed(tmp_path / "a", tmp_path / "b"))
    (found,) = again.inventory()
    assert found.priority.tolist() == [2, 99]
    assert again.usage().blocks == 2
    again.check()
    await tier.close()
    await again.close()


async def test_segments_of_a_newer_version_are_left_alone_and_count(tmp_path, caplog):
    tier = open_tier(tmp_path / "a")
    await stored(tier, *[record(number) for number in range(10)])
    await tier.close()
    (segment,) = segments(tmp_path / "a")
    content = bytearray(segment.read_bytes())
    struct.pack_into("<H", content, 16, 7)  # the version
    struct.pack_into("<Q", content, 8, xxhash.xxh3_64_intdigest(content[16:PAGE]))
    segment.write_bytes(content)
    again = open_tier(tmp_path / "a")
    assert "another version" in caplog.text
    assert again.usage().blocks == 0
    assert again.usage().used_bytes >= len(content)
    (device,) = again.devices()
    assert (device.foreign_segments, device.state) == (1, "ok")
    limit = again.usage().live_limit_bytes
    assert limit < open_tier(tmp_path / "empty").usage().live_limit_bytes
    await stored(again, record(77))
    await again.close()
    assert segment.read_bytes() == content


async def test_a_file_that_was_never_finished_is_removed(tmp_path):
    (tmp_path / "a").mkdir()
    for name, content in (("1", b""), ("2", bytes(5 * PAGE)), ("3", b"kvt-seg\0" + bytes(3 * PAGE))):
        (tmp_path / "a" / f"{name:0>16}.seg").write_bytes(content)
    tier = open_tier(tmp_path / "a")
    assert segments(tmp_path / "a") == []
    await stored(tier, record(1))
    assert segments(tmp_path / "a")[0].name == f"{4:016x}.seg"
    await tier.close()


@pytest.mark.parametrize("block_tokens", [1, 15, 16, 17, 975, 976, 977, 1024])
@pytest.mark.parametrize("how", ["close", "kill"])
async def test_blocks_of_every_number_of_tokens(tmp_path, block_tokens, how):
    """A header of one page holds 976 tokens; beyond, it has two."""
    records = [record(number, PAGE + 1, block_tokens) for number in range(5)]
    tier = open_tier(tmp_path / "a")
    await stored(tier, *records)
    assert await held(tier, records) == 5
    path = tmp_path / "a" if how == "close" else as_killed(tmp_path / "a", tmp_path / "b")
    await tier.close()
    again = open_tier(path)
    assert numbers(again) == set(range(5))
    assert await held(again, records) == 5
    await again.close()


async def test_short_keys_and_several_namespaces_share_a_segment(tmp_path):
    short = [
        record(n, key=key(n, 16), parent=key(n - 1, 16), hash_name="xxh3-128", fingerprint=b"x" * 32) for n in (1, 2)
    ]
    long = [record(n, PAGE) for n in (3, 4)]
    tier = open_tier(tmp_path / "a")
    await stored(tier, short[0], long[0], short[1], long[1])
    await tier.close()
    again = open_tier(tmp_path / "a")
    parts = {part.hash_name: part for part in again.inventory()}
    assert [row.tobytes() for row in parts["xxh3-128"].keys] == [each.key + bytes(16) for each in short]
    assert parts["sha256"].block_bytes == PAGE
    assert await held(again, short + long) == 4
    assert await again.drop([short[0].key]) == [True]
    await again.close()


async def test_without_direct_io_it_works_and_says_so_once(tmp_path, caplog):
    class Refusing(OsFiles):
        def open_segment(self, path, access, *, direct):
            if direct:
                raise OSError(errno.EINVAL, "no")
            return super().open_segment(path, access, direct=direct)

    tier = open_tier(tmp_path / "a", files=Refusing())
    records = [record(number) for number in range(40)]
    for each in records:
        await stored(tier, each)
    assert await held(tier, records) == 40
    assert [device.direct for device in tier.devices()] == [False]
    assert caplog.text.count("no direct I/O") == 1
    await tier.close()


async def test_memory_that_begins_anywhere_will_do(tmp_path):
    tier = open_tier(tmp_path / "a")
    content = np.random.default_rng(1).integers(0, 256, BLOCK_BYTES + 9, dtype=np.uint8)
    one = record(1, payload=content[9:], checksum=xxhash.xxh3_64_intdigest(content[9:].tobytes()))
    await stored(tier, record(0), one, record(2))
    asked = [wanted(record(0)), wanted(one), wanted(record(2))]
    memory = np.zeros(BLOCK_BYTES + 5, np.uint8)
    object.__setattr__(asked[1], "into", memory[5:])
    got = await tier.get(asked, deadline_s=10)
    assert all(isinstance(each, Hit) for each in got)
    assert (memory[5:] == content[9:]).all()
    await tier.close()
