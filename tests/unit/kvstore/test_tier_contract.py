"""One suite for every tier: what `tiers/base.py` promises. A new tier joins TIERS and must pass unchanged."""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.peer.client import PeerClient
from kvterrace.kvstore.peer.counts import FetchCounts
from kvterrace.kvstore.peer.tier import PeerTier
from kvterrace.kvstore.tiers import (
    DramTier,
    Failed,
    Hit,
    Miss,
    NullTier,
    Record,
    Rejected,
    Stored,
    Tier,
    Wanted,
)
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.kvstore.tiers.remote import Directory, OnThreads, RemoteTier

pytestmark = pytest.mark.unit

BLOCK_BYTES = 4096
PAGE = 4096


@dataclass
class Case:
    """keeps: whether it stores at all. flip(tier, key): damage the kept payload behind the tier's back. evicts: whether
    it makes room by itself, instead of saying "full". bounded: whether it has a cap of its own."""

    make: Callable[[Path], Tier]
    keeps: bool
    flip: Callable[[Tier, bytes], None]
    capacity_bytes: int
    evicts: bool = False
    bounded: bool = True


def flip_dram(tier, key):
    tier._kept[key].payload[100] ^= 1


def flip_nvme(tier, key):
    _, segment, ordinal = tier._index.find(key)
    with open(segment.path, "r+b") as file:
        file.seek((segment.pages[ordinal] + 1) * PAGE + 100)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
        os.fsync(file.fileno())


def flip_file(tier, key):
    (path,) = tier.folder.rglob(key.hex())
    data = bytearray(path.read_bytes())
    data[PAGE + 100] ^= 1
    path.write_bytes(data)


def make_directory(path: Path) -> RemoteTier:
    tier = RemoteTier(OnThreads(Directory(path, 10 * (BLOCK_BYTES + PAGE))))
    tier.folder = path
    return tier


NVME_CAPACITY_BYTES = 5 * 65536 + 4 * PAGE
TIERS = {
    "dram": Case(lambda _: DramTier(10 * (BLOCK_BYTES + 512)), True, flip_dram, 10 * (BLOCK_BYTES + 512), evicts=True),
    "null": Case(lambda _: NullTier(), False, lambda tier, key: None, 1 << 20),
    "nvme": Case(
        lambda path: NvmeTier.open([NvmePath(path, NVME_CAPACITY_BYTES, min_free_bytes=0)], segment_bytes=65536),
        True,
        flip_nvme,
        NVME_CAPACITY_BYTES,
    ),
    "directory": Case(make_directory, True, flip_file, 10 * (BLOCK_BYTES + PAGE), evicts=True),
    # Only read, and asked by prompt, which no block here has; tests/unit/kvstore_peer/ has its gets.
    "peer": Case(
        lambda _: PeerTier(PeerClient("127.0.0.1:1"), "me", None, FetchCounts()), False, lambda tier, key: None, 1 << 20
    ),
}


@pytest.fixture(params=TIERS)
def case(request):
    return TIERS[request.param]


@pytest.fixture
async def tier(case, tmp_path):
    made = case.make(tmp_path)
    yield made
    await made.close()


def record(number: int, size: int = BLOCK_BYTES) -> Record:
    payload = np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8)
    checksum = xxhash.xxh3_64_intdigest(payload)
    key, parent = bytes([number]) * 32, bytes([number + 100]) * 32
    return Record(bytes(32), key, parent, bytes([number]) * 64, size, payload, checksum)


def ask(what: Record, **other) -> Wanted:
    names = ("fingerprint", "key", "parent", "tokens", "block_bytes")
    fields = {name: getattr(what, name) for name in names} | other
    return Wanted(into=np.zeros(what.payload.nbytes, np.uint8), **fields)


def answer(case: Case, kept, dropped):
    return kept if case.keeps else dropped


async def test_what_was_stored_comes_back_and_what_was_not_is_a_miss_in_order(case, tier):
    first, second, never = record(1), record(2), record(3)
    stored = await tier.put([first, second], deadline_s=1)
    assert stored == answer(case, [Stored(), Stored()], [Rejected("disabled")] * 2)
    wanted = [ask(second), ask(never), ask(first)]
    got = await tier.get(wanted, deadline_s=1)
    assert got == answer(case, [Hit(second.checksum), Miss(), Hit(first.checksum)], [Miss()] * 3)
    if case.keeps:
        assert (wanted[0].into == second.payload).all()
        assert (wanted[2].into == first.payload).all()


async def test_the_callers_buffer_is_its_own_again_after_put(case, tier):
    """A slot is reused as soon as put has returned."""
    one = record(1)
    payload = one.payload.copy()
    await tier.put([one], deadline_s=1)
    one.payload[:] = 0
    wanted = ask(one)
    assert await tier.get([wanted], deadline_s=1) == answer(case, [Hit(one.checksum)], [Miss()])
    assert not case.keeps or (wanted.into == payload).all()


@pytest.mark.parametrize("other", [{"fingerprint": b"x" * 32}, {"parent": bytes(32)}, {"tokens": bytes(64)}])
async def test_identity_is_compared_not_trusted(tier, other):
    """The same key in another namespace, with another parent or other tokens must not be served."""
    one = record(1)
    await tier.put([one], deadline_s=1)
    assert await tier.get([ask(one, **other)], deadline_s=1) == [Miss()]


async def test_a_block_of_another_length_is_not_served(tier):
    one = record(1)
    await tier.put([one], deadline_s=1)
    for size in (BLOCK_BYTES - 1, BLOCK_BYTES // 2):
        assert await tier.get([ask(one, block_bytes=size)], deadline_s=1) == [Miss()]


@pytest.mark.parametrize("size", [BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1])
@pytest.mark.parametrize("slack", [0, PAGE])
async def test_what_lies_behind_the_block_is_not_part_of_it(case, tier, size, slack):
    """Slots are whole pages; blocks need not be. Nothing is read or written beyond `into`."""
    one = record(1, size + slack)
    one = dataclasses.replace(one, block_bytes=size, checksum=xxhash.xxh3_64_intdigest(one.payload[:size].tobytes()))
    assert await tier.put([one], deadline_s=1) == answer(case, [Stored()], [Rejected("disabled")])
    memory = np.zeros(size + slack + 64, np.uint8)
    wanted = dataclasses.replace(ask(one), into=memory[: size + slack])
    assert await tier.get([wanted], deadline_s=1) == answer(case, [Hit(one.checksum)], [Miss()])
    assert not case.keeps or (wanted.into[:size] == one.payload[:size]).all()
    assert not memory[size + slack :].any()


async def test_a_flipped_bit_is_found_and_the_block_gone(case, tier):
    bad, good = record(1), record(2)
    await tier.put([bad, good], deadline_s=1)
    case.flip(tier, bad.key)
    got = await tier.get([ask(bad), ask(good)], deadline_s=1)
    assert got == answer(case, [Failed("corrupt"), Hit(good.checksum)], [Miss()] * 2)
    assert await tier.get([ask(bad)], deadline_s=1) == [Miss()]
    assert tier.usage().blocks == answer(case, 1, 0)


async def test_a_payload_that_does_not_fit_its_checksum_is_not_stored(case, tier):
    one = record(1)
    one.payload[7] ^= 1
    (given,) = await tier.put([one], deadline_s=1)
    assert given == Rejected(answer(case, "corrupt", "disabled"))
    assert await tier.get([ask(one)], deadline_s=1) == [Miss()]


async def test_the_cap_holds_after_every_put_and_new_blocks_get_in(case, tier):
    """A tier that is full says so; who drops the oldest is then served, for ever."""
    oldest, rounds = 0, 100 if case.bounded else 12
    for number in range(rounds):
        one = record(number)
        (given,) = await tier.put([one], deadline_s=1)
        if given == Rejected("full") and not case.evicts:
            while tier.usage().live_bytes + 2 * PAGE > tier.usage().live_limit_bytes:
                await tier.drop([record(oldest).key])
                oldest += 1
            (given,) = await tier.put([one], deadline_s=1)
        usage = tier.usage()
        if case.bounded:
            assert usage.used_bytes <= usage.capacity_bytes <= case.capacity_bytes
        assert given == answer(case, Stored(), Rejected("disabled"))
    last, first = record(rounds - 1), Miss() if case.bounded else Hit(record(0).checksum)
    got = await tier.get([ask(last), ask(record(0))], deadline_s=1)
    assert got == answer(case, [Hit(last.checksum), first], [Miss()] * 2)


async def test_more_than_the_capacity_is_rejected_and_costs_nobody_his_place(case, tier):
    if not case.bounded:
        assert tier.usage().capacity_bytes == 0
        return
    one, huge = record(1), record(2, size=case.capacity_bytes)
    await tier.put([one], deadline_s=1)
    (given,) = await tier.put([huge], deadline_s=1)
    assert given == Rejected(answer(case, "too_large", "disabled"))
    assert tier.usage().blocks == answer(case, 1, 0)


async def test_storing_twice_keeps_one_copy(case, tier):
    await tier.put([record(1)], deadline_s=1)
    before = tier.usage()
    await tier.put([record(1), record(1)], deadline_s=1)
    assert tier.usage() == before
    assert before.blocks == answer(case, 1, 0)


async def test_dropped_is_gone_and_gives_its_bytes_back(case, tier):
    empty = tier.usage()
    await tier.put([record(1), record(2)], deadline_s=1)
    assert await tier.drop([record(1).key, record(9).key]) == [case.keeps, False]
    assert await tier.drop([record(1).key]) == [False]
    assert await tier.get([ask(record(1))], deadline_s=1) == [Miss()]
    await tier.drop([record(2).key])
    usage = tier.usage()
    assert (usage.blocks, usage.live_bytes, usage.live_limit_bytes) == (0, empty.live_bytes, empty.live_limit_bytes)


async def test_what_was_dropped_can_be_put_again(case, tier):
    await tier.put([record(1)], deadline_s=1)
    await tier.drop([record(1).key])
    assert await tier.put([record(1)], deadline_s=1) == answer(case, [Stored()], [Rejected("disabled")])
    assert await tier.get([ask(record(1))], deadline_s=1) == answer(case, [Hit(record(1).checksum)], [Miss()])


async def test_empty_batches_are_answered(tier):
    assert await tier.get([], deadline_s=0) == []
    assert await tier.put([], deadline_s=0) == []
    assert await tier.drop([]) == []


async def test_after_close_it_has_and_takes_nothing(tier):
    await tier.put([record(1)], deadline_s=1)
    await tier.close()
    await tier.close()
    assert await tier.get([ask(record(1))], deadline_s=1) == [Miss()]
    assert await tier.put([record(2)], deadline_s=1) == [Rejected("closed")]
    assert await tier.drop([record(1).key]) == [False]
    assert tier.usage().blocks == 0
