"""Keys come and go: rotation, erasure, tenants side by side, and what must not be on a disk that is encrypted."""

import dataclasses

import pytest
import xxhash
from kvterrace.kvstore.errors import NvmeError
from kvterrace.kvstore.tiers import Hit, Miss, Rejected, Stored
from kvterrace.proto import Retention
from kvterrace.proto.encrypted import EncryptedHeader
from kvterrace.proto.record import RecordHeader

from .keys import ALICE, BOB, ring, tenant_of
from .shelf import (
    CAPACITY_BYTES,
    PAGE,
    SEGMENT_BYTES,
    SPACE,
    as_killed,
    held,
    key,
    numbers,
    open_tier,
    overwrite,
    record,
    segments,
    wanted,
)

pytestmark = pytest.mark.unit


def open_keyed(path, keys, **options):
    return open_tier(path, keys=keys, tenant_of=tenant_of, **options)


async def stored(tier, *records):
    assert await tier.put(records, deadline_s=10) == [Stored()] * len(records)


def of(fingerprint: bytes, numbers) -> list:
    return [record(number, fingerprint=fingerprint) for number in numbers]


def heads(path):
    """All whole record headers in a directory's segments, encrypted ones as they lie."""
    for each in segments(path):
        content = memoryview(each.read_bytes())
        for at in range(0, len(content), PAGE):
            sealed, clear = EncryptedHeader.unpack(content[at:]), RecordHeader.unpack(content[at:])
            if sealed is not None or clear is not None:
                yield sealed or clear[0]


@pytest.mark.parametrize("how", ["close", "kill"])
async def test_who_erases_a_key_erases_its_tenant_and_nobody_else(tmp_path, how):
    tier = open_keyed(tmp_path / "a", ring(alice="a1", bob="b1", default="d1"))
    alice, bob, mine = of(ALICE, range(1, 30)), of(BOB, range(30, 60)), of(SPACE, range(60, 70))
    for first, second in zip(alice, bob, strict=False):
        await stored(tier, first, second)
    await stored(tier, *mine, bob[-1])
    path = tmp_path / "a" if how == "close" else as_killed(tmp_path / "a", tmp_path / "b")
    await tier.close()
    again = open_keyed(path, ring(bob="b1", default="d1"))
    assert numbers(again) == set(range(30, 70))
    assert again.devices()[0].key_missing_blocks == len(alice)
    assert again.devices()[0].corrupt_blocks == 0
    assert await held(again, bob + mine) == len(bob + mine)
    assert await again.get([wanted(each) for each in alice], deadline_s=10) == [Miss()] * len(alice)
    assert again.usage().live_bytes == len(bob + mine) * 3 * PAGE
    await stored(again, *of(BOB, range(100, 140)))  # there is room, and the rest works
    again.check()
    await again.close()
    back = open_keyed(path, ring(alice="a1", bob="b1", default="d1"))  # the key turns up again: too late
    assert not numbers(back) & set(range(1, 30))
    assert back.devices()[0].key_missing_blocks == 0
    await back.close()


async def test_the_space_of_an_erased_tenant_is_taken_back(tmp_path):
    tier = open_keyed(tmp_path / "a", ring(alice="a1", bob="b1"))
    many = CAPACITY_BYTES // (3 * PAGE)
    for number in range(0, many // 2):
        await tier.put([*of(ALICE, [number]), *of(BOB, [1000 + number])], deadline_s=10)
    await tier.close()
    again = open_keyed(tmp_path / "a", ring(bob="b1"))
    left = again.usage()
    assert left.live_bytes < left.live_limit_bytes * 0.6
    fresh = of(BOB, range(5000, 5000 + (left.live_limit_bytes - left.live_bytes) // (4 * PAGE)))
    for at in range(0, len(fresh), 5):
        await stored(again, *fresh[at : at + 5])
    assert await held(again, fresh) == len(fresh)
    again.check()
    await again.close()


async def test_a_segment_of_nothing_but_an_erased_tenant_is_removed_at_once(tmp_path):
    tier = open_keyed(tmp_path / "a", ring(alice="a1"))
    await stored(tier, *of(ALICE, range(10)))
    await tier.close()
    assert segments(tmp_path / "a")
    again = open_keyed(tmp_path / "a", ring(bob="b1"))
    assert segments(tmp_path / "a") == []
    await again.close()


async def test_another_key_opens_nothing_and_says_whose_fault_it_is(tmp_path):
    """A wrong key has another id: it is a key that is missing, not a damaged disk."""
    tier = open_keyed(tmp_path / "a", ring(alice="a1"))
    await stored(tier, *of(ALICE, range(10)))
    await tier.close()
    again = open_keyed(tmp_path / "a", ring(alice="another"))
    device = again.devices()[0]
    assert (again.usage().blocks, device.key_missing_blocks, device.open_failures) == (0, 10, 0)
    await again.close()


async def test_a_rotated_key_still_reads_and_the_new_one_writes(tmp_path):
    tier = open_keyed(tmp_path / "a", ring(alice="a1"))
    old = of(ALICE, range(10))
    await stored(tier, *old)
    await tier.close()
    both = open_keyed(tmp_path / "a", ring(alice=["a2", "a1"]))
    new = of(ALICE, range(10, 20))
    await stored(both, *new)
    await stored(both, dataclasses.replace(old[0], retention=Retention(priority=7), replace=True))
    assert await held(both, old + new) == 20
    await both.close()
    after = open_keyed(tmp_path / "a", ring(alice="a2"))
    assert numbers(after) == {0, *range(10, 20)}
    assert await held(after, [*new, old[0]]) == 11
    await after.close()


async def test_a_tenant_without_a_key_is_not_written_and_neither_is_an_unknown_one(tmp_path):
    tier = open_keyed(tmp_path / "a", ring(alice="a1"))
    unknown = record(9, fingerprint=b"?" * 32)
    asked = [*of(ALICE, [1]), *of(BOB, [2]), unknown, *of(ALICE, [3])]
    answers = await tier.put(asked, deadline_s=10)
    assert answers == [Stored(), Rejected("no_key"), Rejected("no_tenant"), Stored()]
    assert [tier.refuses(each) for each in (ALICE, BOB, b"?" * 32)] == ["", "no_key", "no_tenant"]
    await tier.close()
    assert [each.header.fingerprint for each in heads(tmp_path / "a")] == [ALICE, ALICE]


async def test_a_tenant_that_is_meant_to_be_in_clear_lies_beside_one_that_is_not(tmp_path):
    keys = ring(alice="a1", bob="clear")
    tier = open_keyed(tmp_path / "a", keys)
    alice, bob = of(ALICE, range(10)), of(BOB, range(10, 20))
    for one, other in zip(alice, bob, strict=True):
        await stored(tier, one, other)
    assert await held(tier, alice + bob) == 20
    killed = as_killed(tmp_path / "a", tmp_path / "b")
    await tier.close()
    for path in (tmp_path / "a", killed):
        kinds = [isinstance(each, RecordHeader) for each in heads(path)]
        assert (kinds.count(True), kinds.count(False)) == (10, 10)
        again = open_keyed(path, keys)
        assert numbers(again) == set(range(20))
        assert await held(again, alice + bob) == 20
        again.check()
        await again.close()


@pytest.mark.parametrize("how", ["close", "kill"])
async def test_encrypted_blocks_without_any_keys_stop_the_start(tmp_path, how):
    """That is a forgotten option, and to drop the blocks for it would be a loss."""
    tier = open_keyed(tmp_path / "a", ring(alice="a1"))
    await stored(tier, *of(ALICE, range(10)))
    path = tmp_path / "a" if how == "close" else as_killed(tmp_path / "a", tmp_path / "b")
    await tier.close()
    for _ in range(2):  # the lock is let go each time
        with pytest.raises(NvmeError, match=r"encrypted.*--nvme-keys or KVTERRACE_KEYRING"):
            open_tier(path)
    again = open_keyed(path, ring(alice="a1"))
    assert await held(again, of(ALICE, range(10))) == 10
    await again.close()


async def test_turning_encryption_on_leaves_nothing_in_clear(tmp_path):
    tier = open_tier(tmp_path / "a")
    await stored(tier, *of(ALICE, range(10)))
    await tier.close()
    again = open_keyed(tmp_path / "a", ring(alice="a1"))
    assert (again.usage().blocks, again.devices()[0].clear_dropped_blocks) == (0, 10)
    assert segments(tmp_path / "a") == []
    await again.close()


async def test_clear_records_of_before_stay_where_their_tenant_is_meant_to_be_in_clear(tmp_path):
    tier = open_tier(tmp_path / "a")
    await stored(tier, *of(ALICE, range(5)), *of(BOB, range(5, 10)), record(99, fingerprint=b"?" * 32))
    await tier.close()
    again = open_keyed(tmp_path / "a", ring(alice="a1", bob="clear"))
    assert await held(again, of(BOB, range(5, 10))) == 5
    assert await again.get([wanted(each) for each in of(ALICE, range(5))], deadline_s=10) == [Miss()] * 5
    assert again.devices()[0].clear_dropped_blocks == 5
    assert await again.get([wanted(record(99, fingerprint=b"?" * 32))], deadline_s=10) == [Miss()]
    assert again.usage().blocks == 6  # whose it is may turn out later
    again.check()
    await again.close()


async def test_moved_and_replaced_records_stay_encrypted_and_whole(tmp_path):
    tier = open_keyed(tmp_path / "a", ring(alice=["a2", "a1"], bob="clear"))
    kept = of(ALICE, range(0, 240, 8))
    for at in range(0, 240, 4):
        group = of(ALICE, range(at, at + 3)) + of(BOB, [at + 3])
        await stored(tier, *group)
        await tier.drop([each.key for each in group if each.key not in {one.key for one in kept}])
    assert tier.devices()[0].written_bytes > tier.devices()[0].accepted_bytes + SEGMENT_BYTES // 4  # some have moved
    assert await held(tier, kept) == len(kept)
    killed = as_killed(tmp_path / "a", tmp_path / "b")
    await tier.close()
    for path in (tmp_path / "a", killed):
        again = open_keyed(path, ring(alice="a2"))
        assert await held(again, kept) == len(kept)
        assert again.devices()[0].corrupt_blocks == 0
        again.check()
        await again.close()


async def test_retention_of_a_namespace_that_nobody_uses_now_is_written_with_its_tenant_s_key(tmp_path):
    """A tenant is known by its sessions; what recovery found is known by its key."""
    keys = ring(alice="a1", default="d1")
    tier = open_keyed(tmp_path / "a", keys)
    await stored(tier, *of(ALICE, [1]))
    await tier.close()
    again = open_tier(tmp_path / "a", keys=keys, tenant_of=lambda _: None)
    changed = dataclasses.replace(of(ALICE, [1])[0], retention=Retention(priority=88), replace=True)
    await stored(again, changed)
    await again.close()
    found = open_tier(tmp_path / "a", keys=ring(alice="a1"), tenant_of=lambda _: None)
    assert [part.priority.tolist() for part in found.inventory()] == [[88]]
    await found.close()


async def test_a_record_slipped_in_in_clear_is_not_served(tmp_path):
    """To leave the encryption out is no way round it."""
    victim = of(ALICE, [1])[0]
    plain = open_tier(tmp_path / "plain")
    await stored(plain, victim)
    _, segment, ordinal = plain._index.find(key(1))
    content = segment.path.read_bytes()[segment.pages[ordinal] * PAGE :][: 3 * PAGE]
    await plain.close()
    tier = open_keyed(tmp_path / "a", ring(alice="a1", bob="clear"))
    await stored(tier, victim)
    _, segment, ordinal = tier._index.find(key(1))
    head = bytearray(content)
    head[24:32] = segment.header.ident.to_bytes(8, "little")
    head[8:16] = xxhash.xxh3_64_intdigest(head[16:PAGE]).to_bytes(8, "little")
    at = segment.pages[ordinal] * PAGE
    killed = as_killed(tmp_path / "a", tmp_path / "b")
    overwrite(segment.path, at, bytes(head))
    (answer,) = await tier.get([wanted(victim)], deadline_s=10)
    assert not isinstance(answer, Hit)
    await tier.close()
    overwrite(segments(killed)[0], at, bytes(head))
    again = open_keyed(killed, ring(alice="a1", bob="clear"))
    (answer,) = await again.get([wanted(victim)], deadline_s=10)
    assert answer == Miss()
    await again.close()


async def test_a_footer_that_was_changed_with_its_checksums_is_not_believed(tmp_path):
    """Rows in clear say which page a block lies at; they are bound to the keys that are hidden."""
    keys = ring(alice="a1")
    tier = open_keyed(tmp_path / "a", keys)
    await stored(tier, *of(ALICE, range(10)))
    await tier.close()
    (segment,) = segments(tmp_path / "a")
    content = bytearray(segment.read_bytes())
    trailer = len(content) - PAGE
    page = int.from_bytes(content[trailer + 32 : trailer + 36], "little")
    size = int.from_bytes(content[trailer + 40 : trailer + 48], "little")
    row = page * PAGE + 80  # behind the one group
    content[row + 38] ^= 1  # the first row's flags: pinned
    body = bytes(content[page * PAGE : page * PAGE + size])
    content[trailer + 48 : trailer + 56] = xxhash.xxh3_64_intdigest(body).to_bytes(8, "little")
    content[trailer + 8 : trailer + 16] = xxhash.xxh3_64_intdigest(content[trailer + 16 :]).to_bytes(8, "little")
    segment.write_bytes(content)
    again = open_keyed(tmp_path / "a", keys)
    (found,) = again.inventory()
    assert found.pinned.tolist() == [number % 3 == 0 for number in range(10)]  # the records themselves say so
    assert await held(again, of(ALICE, range(10))) == 10
    await again.close()


async def test_no_nonce_comes_twice(tmp_path):
    tier = open_keyed(tmp_path / "a", ring(alice="a1"))
    await stored(tier, *of(ALICE, range(40)))
    for number in range(0, 40, 3):
        again = dataclasses.replace(of(ALICE, [number])[0], retention=Retention(priority=1), replace=True)
        await stored(tier, again)
    await tier.close()
    found = list(heads(tmp_path / "a"))
    nonces = [nonce for each in found for nonce in (each.nonce, each.body.nonce)]
    assert len(found) == 54
    assert len(set(nonces)) == len(nonces)
