"""Where there are keys: what lies in the store, what it is called, and who reads it."""

import dataclasses
import os

import pytest
from kvterrace.kvstore.security.keyring import make
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Rejected, Stored
from kvterrace.kvstore.tiers.nvme.cipher import Cipher
from kvterrace.kvstore.tiers.remote import Directory, Envelope, OnThreads, RemoteTier

from .conftest import ask, record

pytestmark = pytest.mark.unit

ALICE, BOB = b"a" * 32, b"b" * 32
KEYS = {"alice": ["11" * 32], "bob": ["22" * 32], "open": ["clear"]}


def tier(path, keys=KEYS, owners=None) -> RemoteTier:
    owners = owners or {ALICE: "alice", BOB: "bob", bytes(32): "open"}
    envelope = Envelope(Cipher(make(keys, "test"), owners.get)) if keys else None
    return RemoteTier(OnThreads(Directory(path, 64 << 20)), envelope=envelope, deadline_s=5.0)


def files(path):
    return [each for each in path.rglob("*") if each.is_file()]


async def test_it_comes_back_and_neither_bytes_nor_names_tell_the_prompt(shared):
    made, one = tier(shared), record(1, fingerprint=ALICE)
    one = dataclasses.replace(one, tokens=os.urandom(64))
    assert await made.put([one], deadline_s=5) == [Stored()]
    (path,) = files(shared)
    content = path.read_bytes()
    for secret in (one.key, one.parent, one.tokens, one.payload[:64].tobytes(), one.checksum.to_bytes(8, "little")):
        assert secret not in content
    assert one.key.hex() not in str(path)
    wanted = ask(one)
    assert await made.get([wanted], deadline_s=5) == [Hit(one.checksum)]
    assert (wanted.into == one.payload).all()
    assert await made.has(ALICE, [one.key], [0], deadline_s=5) == [True]
    assert await made.put([one], deadline_s=5) == [Stored()]
    assert made.counts.present_blocks == 1
    assert await made.drop([one.key]) == [True]
    await made.close()


@pytest.mark.parametrize("at", [20, 100, 280, 4096 + 10, -1])
async def test_a_flipped_bit_is_found(shared, at):
    made, one = tier(shared), record(1, fingerprint=ALICE)
    await made.put([one], deadline_s=5)
    (path,) = files(shared)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert await made.get([ask(one)], deadline_s=5) == [Failed("corrupt")]
    assert not files(shared)
    await made.close()


async def test_a_block_in_clear_in_its_place_is_not_believed(shared):
    made, one, plain = tier(shared), record(1, fingerprint=ALICE), tier(shared, keys=None)
    await made.put([one], deadline_s=5)
    (path,) = files(shared)
    await plain.put([one], deadline_s=5)
    (clear,) = [each for each in files(shared) if each != path]
    path.write_bytes(clear.read_bytes())
    assert await made.get([ask(one)], deadline_s=5) == [Failed("corrupt")]
    for each in (made, plain):
        await each.close()


async def test_another_key_finds_nothing_and_removes_nothing(shared):
    made, one = tier(shared), record(1, fingerprint=ALICE)
    await made.put([one], deadline_s=5)
    other = tier(shared, keys=KEYS | {"alice": ["33" * 32]})
    assert await other.get([ask(one)], deadline_s=5) == [Miss()]
    assert await made.get([ask(one)], deadline_s=5) == [Hit(one.checksum)]
    for each in (made, other):
        await each.close()


async def test_a_tenant_without_a_key_has_nothing_there(shared):
    made, one = tier(shared), record(1, fingerprint=ALICE)
    await made.put([one], deadline_s=5)
    erased = tier(shared, keys={"bob": KEYS["bob"]})
    assert await erased.get([ask(one)], deadline_s=5) == [Miss()]
    assert await erased.has(ALICE, [one.key], [0], deadline_s=5) == [False]
    assert await erased.put([one], deadline_s=5) == [Rejected("no_key")]
    assert await erased.put([record(1, fingerprint=b"?" * 32)], deadline_s=5) == [Rejected("no_tenant")]
    for each in (made, erased):
        await each.close()


async def test_a_tenant_that_is_meant_to_be_in_clear_is(shared):
    made, one = tier(shared), record(1)
    await made.put([one], deadline_s=5)
    (path,) = files(shared)
    assert path.name == one.key.hex()
    assert await made.get([ask(one)], deadline_s=5) == [Hit(one.checksum)]
    await made.close()


async def test_what_does_not_fit_its_checksum_is_not_sealed(shared):
    made, one = tier(shared), record(1, fingerprint=ALICE)
    one.payload[3] ^= 1
    assert await made.put([one], deadline_s=5) == [Rejected("corrupt")]
    assert not shared.exists()
    await made.close()
