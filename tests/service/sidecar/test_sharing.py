"""Two engines and one real sidecar: blocks shared through the arena, refusals that name the field, many at once."""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable

import pytest
from kvterrace.kvstore.errors import SessionRefused
from kvterrace.kvstore.service import frames
from kvterrace.kvstore.sidecar import SidecarClient

pytestmark = pytest.mark.service

Connect = Callable[..., Awaitable[SidecarClient]]


async def test_what_one_engine_saved_another_reads_byte_for_byte(served, connect: Connect, tools) -> None:
    writer, reader = await connect(served.address), await connect(served.address)
    tokens = tools.tokens(8)
    assert await tools.save(writer, tokens)
    given = await reader.acquire(tokens, skip=0, deadline_s=0.5)
    assert (given.reason, given.first, given.tiers) == ("", 0, {"dram": 128})
    assert tools.read(given) == [tools.content(block) for block in range(8)]
    await reader.release(given.lease)
    again = await reader.acquire(tokens, skip=3, deadline_s=0.5)
    assert again.first == 3
    assert tools.read(again) == [tools.content(block) for block in range(3, 8)]


async def test_a_prefix_is_found_in_whole_blocks_and_the_rest_has_its_reason(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(4))
    for extra, blocks in ((-1, 3), (0, 4), (1, 4), (16, 4)):
        tokens = tools.tokens(6)[: 4 * (64 + extra)]
        given = await client.acquire(tokens, skip=0, deadline_s=0.5)
        assert len(given.slots) == blocks
        assert given.reason == ("never_seen" if extra == 16 else "")
        await client.release(given.lease)


async def test_reserve_leaves_out_what_is_present(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(2))
    given = await client.reserve(tools.tokens(4), start=0, count=4)
    assert given.blocks == (2, 3)
    await client.abort(given.lease)
    assert (await client.reserve(tools.tokens(2), start=0, count=2)).reason == "present"


async def test_nothing_reserved_is_visible_before_its_commit(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    given = await client.reserve(tools.tokens(2), start=0, count=2)
    found = await client.acquire(tools.tokens(2), skip=0, deadline_s=0.1)
    assert (found.slots, found.lease) == ((), 0)
    await client.abort(given.lease)
    assert not await client.commit(given.lease, [1, 2])
    assert (await served.status()).tiers[0].used_bytes == 0


async def test_a_block_reported_corrupt_is_never_served_again(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(4))
    given = await client.acquire(tools.tokens(4), skip=0, deadline_s=0.5)
    before = (await served.status()).counters.checksum_failures
    await client.release(given.lease, corrupt=[2])
    again = await client.acquire(tools.tokens(4), skip=0, deadline_s=0.5)
    assert len(again.slots) == 2
    status = await served.status()
    assert (status.counters.checksum_failures - before, status.check_error) == (1, "")


async def test_two_hundred_acquires_at_once_on_one_session(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(8))
    given = await asyncio.gather(*(client.acquire(tools.tokens(8), skip=0, deadline_s=5.0) for _ in range(200)))
    assert {len(one.slots) for one in given} == {8}
    assert len({one.lease for one in given}) == 200
    assert (await served.status()).sessions[0].read_leases == 200
    await asyncio.gather(*(client.release(one.lease) for one in given))
    await client.acquire(b"", skip=0, deadline_s=1.0)  # answered after what was sent before it
    status = await served.status()
    assert (status.tiers[0].leased_bytes, status.check_error) == (0, "")


async def test_a_session_over_tcp_works_like_one_over_the_socket(served, connect: Connect, tools) -> None:
    writer, reader = await connect(served.announced("serving on 127.0.0.1:")), await connect(served.address)
    await tools.save(writer, tools.tokens(3))
    given = await reader.acquire(tools.tokens(3), skip=0, deadline_s=0.5)
    assert tools.read(given) == [tools.content(block) for block in range(3)]


@pytest.mark.parametrize(("field", "value"), [("kv_heads", 4), ("layers", 3), ("head_dim", 16), ("planes", 1)])
async def test_the_same_weights_with_another_geometry_are_refused_by_field(
    served, connect: Connect, namespace, field: str, value: int
) -> None:
    await connect(served.address)
    other = dataclasses.replace(namespace, layout=dataclasses.replace(namespace.layout, **{field: value}))
    with pytest.raises(SessionRefused) as refusal:
        await connect(served.address, other)
    assert refusal.value.field == field
    assert str(value) in (refusal.value.ours, refusal.value.theirs)


async def test_another_hash_is_refused_by_field(served, connect: Connect, namespace) -> None:
    with pytest.raises(SessionRefused, match="hash_name"):
        await connect(served.address, dataclasses.replace(namespace, hash_name="crc32"))


async def test_another_wire_version_is_refused_with_both_versions(
    served, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoken = frames.WIRE_VERSION
    monkeypatch.setattr(frames, "WIRE_VERSION", 99)
    monkeypatch.setattr(frames, "MIN_WIRE_VERSION", 99)
    with pytest.raises(SessionRefused, match=rf"wire_version: .* version {spoken}, .* version 99") as refusal:
        await connect(served.address)
    assert (refusal.value.ours, refusal.value.theirs) == (str(spoken), "99")


async def test_a_fingerprint_that_does_not_follow_from_the_fields_is_refused(
    served, connect: Connect, namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(namespace), "fingerprint", lambda self: b"x" * 32)
    with pytest.raises(SessionRefused) as refusal:
        await connect(served.address)
    assert refusal.value.field == "fingerprint"


async def test_a_tenant_salt_is_not_the_clients_to_choose(served, connect: Connect, namespace) -> None:
    with pytest.raises(SessionRefused, match="tenant_salt"):
        await connect(served.address, dataclasses.replace(namespace, tenant_salt=b"another tenant"))
