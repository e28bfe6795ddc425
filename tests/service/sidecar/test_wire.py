"""The Session stream as any client may speak it: what makes no sense is answered, and costs nobody else anything."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
import pytest
from kvterrace.kvstore.service import frames
from kvterrace.kvstore.service.channel import open_channel
from kvterrace.kvstore.service.stub import session_call
from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.service


class Raw:
    """A session stream without a client."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = session_call(channel)

    async def ask(self, **body: object) -> pb.ServerFrame:
        await self.call.write(pb.ClientFrame(id=7, **body))  # type: ignore[arg-type]
        answer = await asyncio.wait_for(self.call.read(), 3.0)
        assert isinstance(answer, pb.ServerFrame)
        assert answer.id == 7
        return answer


@pytest.fixture
async def raw(served) -> AsyncIterator[Raw]:
    async with open_channel(served.address) as channel:
        yield Raw(channel)


async def test_a_bad_request_names_its_field_and_the_session_goes_on(raw: Raw, namespace, tools) -> None:
    assert (await raw.ask(open=frames.pack_open(namespace, "raw"))).HasField("opened")
    for body, field in (
        ({"acquire": pb.Acquire(tokens=b"abc")}, "tokens"),
        ({"acquire": pb.Acquire(tokens=b"", deadline_s=-1)}, "deadline_s"),
        ({"acquire": pb.Acquire(tokens=b"", deadline_s=float("nan"))}, "deadline_s"),
        ({"lookup": pb.Lookup(tokens=b"abc")}, "tokens"),
        ({"reserve": pb.Reserve(tokens=tools.tokens(2), start=1, count=2)}, "reserve"),
        ({"commit": pb.Commit(lease=1, checksums=b"abc")}, "checksums"),
        ({"open": frames.pack_open(namespace, "twice")}, "open"),
        ({}, "body"),
    ):
        answer = await raw.ask(**body)
        assert answer.invalid.field == field, answer
    found = await raw.ask(lookup=pb.Lookup(tokens=tools.tokens(2)))
    assert (dict(found.found.tiers), found.found.reason) == ({}, "never_seen")


async def test_leases_of_others_cannot_be_ended(raw: Raw, served, connect, namespace, tools) -> None:
    victim: SidecarClient = await connect(served.address)
    await tools.save(victim, tools.tokens(2))
    await victim.acquire(tools.tokens(2), skip=0, deadline_s=1.0)
    await raw.ask(open=frames.pack_open(namespace, "raw"))
    for lease in range(200):
        await raw.ask(release=pb.Release(lease=lease))
        await raw.ask(abort=pb.Abort(lease=lease))
    reads = {session.client: session.read_leases for session in (await served.status()).sessions}
    assert reads == {"test": 1, "raw": 0}


async def test_a_stream_that_does_not_begin_with_open_is_an_error_with_the_field_named(raw: Raw) -> None:
    await raw.call.write(pb.ClientFrame(id=1, lookup=pb.Lookup()))
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await asyncio.wait_for(raw.call.read(), 3.0)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.value.details() == "open: must be the first frame"


async def test_an_impossible_layout_is_refused_by_field(raw: Raw, namespace) -> None:
    opening = frames.pack_open(namespace, "raw")
    opening.namespace.planes = 3
    refused = (await raw.ask(open=opening)).refused
    assert refused.field == "planes"


async def test_a_prompt_too_long_for_a_frame_is_a_miss_and_the_session_lives(
    served, connect: Callable[..., Awaitable[SidecarClient]], tools
) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(2))
    huge = b"\0" * (17 << 20)
    assert (await client.acquire(huge, skip=0, deadline_s=1.0)).reason == "error"
    assert (await client.reserve(huge, start=0, count=1)).reason == "error"
    assert client.connected
    assert len((await client.acquire(tools.tokens(2), skip=0, deadline_s=1.0)).slots) == 2
