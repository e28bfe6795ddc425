"""Who gets in: tokens, certificates, roles and the Unix socket, against a real gRPC server."""

import grpc
import grpc.aio
import pytest
from kvterrace.kvstore.peer.client import PeerClient, PeerError
from kvterrace.kvstore.security.edge import identity_of
from kvterrace.kvstore.service import frames
from kvterrace.kvstore.service.admin import CallRefused, NoSidecar, clear_store, fetch_status
from kvterrace.kvstore.service.channel import Place, open_channel
from kvterrace.kvstore.service.stub import session_call, status_call
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit


async def status(address, credentials=None):
    return await fetch_status(Place(address, credentials) if credentials else address, check=False, timeout_s=5.0)


async def test_without_auth_loopback_and_the_unix_socket_may_do_all(open_door) -> None:
    door = await open_door()
    for address in (door.uds, door.tcp):
        assert (await status(address)).boot_id
        assert await clear_store(address, b"", timeout_s=5.0) == 0


async def test_a_token_lets_in_by_tcp_and_nothing_else_does(open_door, tools, identities, token) -> None:
    door = await open_door(identities=identities(tools.row("ann", "reader")))
    assert (await status(door.tcp, tools.credentials(token=token("ann")))).boot_id
    with pytest.raises(CallRefused, match="token or client certificate is needed"):
        await status(door.tcp)
    with pytest.raises(CallRefused, match="token or client certificate is needed"):
        await status(door.tcp, tools.credentials(token=token("bob")))
    assert door.failures == {"no_credentials": 1, "bad_token": 1}


@pytest.mark.parametrize(
    "said",
    [
        ("authorization", "secret-of-ann"),
        ("authorization", "Basic c2VjcmV0LW9mLWFubg=="),
        ("authorization", "Bearer "),
        ("authorization", "Bearer secret-of-ann x"),
        ("authorization", "Bearer " + "s" * 2000),
    ],
)
async def test_malformed_authorization_is_a_bad_token(open_door, tools, identities, said) -> None:
    door = await open_door(identities=identities(tools.row("ann", "reader")))
    async with grpc.aio.insecure_channel(door.tcp) as channel:
        call = channel.unary_unary("/kvterrace.v1.KVStore/Status")
        with pytest.raises(grpc.aio.AioRpcError) as trouble:
            await call(b"", metadata=(said,), timeout=5)
    assert tools.code_of(trouble) == "UNAUTHENTICATED"
    assert "ann" not in trouble.value.details()


async def test_two_tokens_at_once_are_none(open_door, tools, identities) -> None:
    door = await open_door(identities=identities(tools.row("ann", "reader")))
    both = (("authorization", "Bearer secret-of-ann"), ("authorization", "Bearer secret-of-bob"))
    async with grpc.aio.insecure_channel(door.tcp) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as trouble:
            await channel.unary_unary("/kvterrace.v1.KVStore/Status")(b"", metadata=both, timeout=5)
    assert tools.code_of(trouble) == "UNAUTHENTICATED"


async def test_a_role_is_needed_for_each_call(open_door, tools, identities, token) -> None:
    door = await open_door(
        identities=identities(tools.row("ann", "reader"), tools.row("eve", "engine"), tools.row("oli", "operator"))
    )
    with pytest.raises(CallRefused, match="may not make this call"):
        await clear_store(Place(door.tcp, tools.credentials(token=token("ann"))), b"", timeout_s=5.0)
    with pytest.raises(CallRefused, match="may not make this call"):
        await status(door.tcp, tools.credentials(token=token("eve")))
    assert await clear_store(Place(door.tcp, tools.credentials(token=token("oli"))), b"", timeout_s=5.0) == 0
    assert door.failures == {"role": 2}


async def test_a_session_needs_the_engine_role_before_its_first_frame_is_read(
    open_door, tools, identities, token
) -> None:
    door = await open_door(identities=identities(tools.row("ann", "reader")))
    async with open_channel(door.tcp, tools.credentials(token=token("ann"))) as channel:
        call = session_call(channel)
        with pytest.raises(grpc.aio.AioRpcError) as trouble:
            await call.read()  # nothing was written
    assert tools.code_of(trouble) == "PERMISSION_DENIED"


async def test_by_the_unix_socket_a_token_wins_over_local(open_door, tools, identities, token, monkeypatch) -> None:
    door = await open_door(identities=identities(tools.row("ann", "reader", tenant="acme")))
    seen = []
    wrapped = door.servicer.status
    monkeypatch.setattr(door.servicer, "status", lambda fault: (seen.append(identity_of(None)), wrapped(fault))[1])
    await status(door.uds)
    await status(door.uds, tools.credentials(token=token("ann")))
    assert [(each.name, each.tenant) for each in seen] == [("local", ""), ("ann", "acme")]
    with pytest.raises(CallRefused):
        await clear_store(Place(door.uds, tools.credentials(token=token("ann"))), b"", timeout_s=5.0)
    with pytest.raises(CallRefused):
        await status(door.uds, tools.credentials(token=token("bob")))


async def test_a_token_shown_to_a_server_that_knows_none_is_refused(open_door, tools, token) -> None:
    door = await open_door()
    with pytest.raises(CallRefused):
        await status(door.tcp, tools.credentials(token=token("ann")))


def test_outside_of_a_call_nobody_is_somebody() -> None:
    with pytest.raises(LookupError):
        identity_of(None)


async def test_a_revoked_token_is_refused_without_a_restart(open_door, tools, identities, token, monkeypatch) -> None:
    monkeypatch.setattr("kvterrace.kvstore.security.files.LOOK_S", 0.0)
    door = await open_door(identities=identities(tools.row("ann", "reader"), tools.row("bob", "reader")))
    shown = tools.credentials(token=token("ann"))
    await status(door.tcp, shown)
    identities(tools.row("bob", "reader"))
    with pytest.raises(CallRefused):
        await status(door.tcp, shown)
    identities("[[identity]]\nname = 3")  # a mistake leaves what was
    assert (await status(door.tcp, tools.credentials(token=token("bob")))).boot_id


class Tls:
    """A server with a certificate of `authority`."""

    def __init__(self, authority) -> None:
        self.cert, self.key = authority.issue("server")
        self.options = {"tls_cert": self.cert, "tls_key": self.key}


@pytest.fixture
def tls(authority) -> Tls:
    return Tls(authority)


async def test_a_client_certificate_of_the_ca_lets_in(open_door, tools, authority, tls) -> None:
    door = await open_door(**tls.options, tls_ca=authority.file)
    cert, key = authority.issue("client")
    shown = tools.credentials(ca=authority.file, cert=cert, key=key)
    assert (await status(door.tcp, shown)).boot_id
    assert await clear_store(Place(door.tcp, shown), b"", timeout_s=5.0) == 0
    assert (await status(door.uds)).boot_id, "the Unix socket has no TLS"


async def test_who_has_no_certificate_or_not_a_good_one_gets_nothing(
    open_door, tools, authority, other_authority, tls
) -> None:
    door = await open_door(**tls.options, tls_ca=authority.file)
    stranger, expired = other_authority.issue("stranger"), authority.issue("late", expired=True)
    for shown in (
        tools.credentials(ca=authority.file),
        tools.credentials(ca=authority.file, cert=stranger[0], key=stranger[1]),
        tools.credentials(ca=authority.file, cert=expired[0], key=expired[1]),
        None,
    ):
        with pytest.raises(NoSidecar):
            await status(door.tcp, shown)


async def test_a_server_that_the_clients_ca_does_not_know_is_not_talked_to(
    open_door, tools, identities, token, other_authority, tls
) -> None:
    door = await open_door(**tls.options, identities=identities(tools.row("ann", "reader")))
    with pytest.raises(NoSidecar, match="TLS"):
        await status(door.tcp, tools.credentials(ca=other_authority.file, token=token("ann")))


async def test_certificates_are_identities_by_their_names(open_door, tools, authority, tls, identities) -> None:
    file = identities(
        tools.row("ann", "reader", certificate="ann.example"),
        tools.row("oli", "operator", certificate="spiffe://acme/oli"),
    )
    door = await open_door(**tls.options, tls_ca=authority.file, identities=file)
    pairs = authority.issue("ann.example"), authority.issue("x", uri="spiffe://acme/oli"), authority.issue("nobody")
    ann, oli, nobody = (tools.credentials(ca=authority.file, cert=cert, key=key) for cert, key in pairs)
    assert (await status(door.tcp, ann)).boot_id
    with pytest.raises(CallRefused, match="may not"):
        await clear_store(Place(door.tcp, ann), b"", timeout_s=5.0)
    assert await clear_store(Place(door.tcp, oli), b"", timeout_s=5.0) == 0
    with pytest.raises(CallRefused, match="needed"):
        await status(door.tcp, nobody)
    assert door.failures == {"role": 1, "unknown_certificate": 1}


async def test_a_token_over_tls_needs_no_certificate(open_door, tools, authority, tls, identities, token) -> None:
    door = await open_door(**tls.options, identities=identities(tools.row("ann", "reader")))
    assert (await status(door.tcp, tools.credentials(ca=authority.file, token=token("ann")))).boot_id
    with pytest.raises(CallRefused, match="needed"):
        await status(door.tcp, tools.credentials(ca=authority.file))


async def test_new_certificate_files_are_used_by_new_connections(
    open_door, tools, authority, other_authority, tls, monkeypatch
) -> None:
    monkeypatch.setattr("kvterrace.kvstore.security.files.LOOK_S", 0.0)
    door = await open_door(**tls.options)
    assert (await status(door.tcp, tools.credentials(ca=authority.file))).boot_id
    cert, key = other_authority.issue("server", file="renewed")
    cert.rename(tls.cert)
    with pytest.raises(NoSidecar):  # a certificate without its key: the old pair stays
        await status(door.tcp, tools.credentials(ca=other_authority.file))
    key.rename(tls.key)
    assert (await status(door.tcp, tools.credentials(ca=other_authority.file))).boot_id
    with pytest.raises(NoSidecar):
        await status(door.tcp, tools.credentials(ca=authority.file))


async def test_a_fault_of_the_server_tells_its_client_nothing(open_door, monkeypatch) -> None:
    door = await open_door()

    def broken() -> None:
        raise KeyError("a secret path")

    monkeypatch.setattr(door.servicer.scores, "score", lambda request: broken())
    async with open_channel(door.uds) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as trouble:
            await channel.unary_unary("/kvterrace.v1.KVStore/Score")(b"", timeout=5)
    assert trouble.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in trouble.value.details()


async def test_bytes_that_are_no_message_are_an_invalid_argument(open_door) -> None:
    door = await open_door()
    async with open_channel(door.uds) as channel:
        for data in (b"\xff", b"\x0a\xff\xff\xff\xff\x0f"):
            with pytest.raises(grpc.aio.AioRpcError) as trouble:
                await channel.unary_unary("/kvterrace.v1.KVStore/Status")(data, timeout=5)
            assert trouble.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await status_call(channel, pb.StatusRequest(), 5.0)).boot_id


async def test_a_field_that_is_too_long_is_named(open_door) -> None:
    door = await open_door()
    async with open_channel(door.uds) as channel:
        call = channel.unary_unary("/kvterrace.v1.KVStore/Retain")
        with pytest.raises(grpc.aio.AioRpcError, match="set: has 9 items") as trouble:
            await call(pb.RetainRequest(set=["ttl_s"] * 9).SerializeToString(), timeout=5)
        assert trouble.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_method_is_unimplemented(open_door) -> None:
    door = await open_door()
    async with open_channel(door.uds) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as trouble:
            await channel.unary_unary("/kvterrace.v1.KVStore/Nothing")(b"", timeout=5)
    assert trouble.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_in_a_session_a_field_that_is_too_long_is_named_and_the_session_goes_on(open_door) -> None:
    door = await open_door()
    space = Namespace(b"weights of a model", BlockLayout(1, 1, 2, 4, 8, "float32"))
    async with open_channel(door.uds) as channel:
        call = session_call(channel)
        await call.write(pb.ClientFrame(id=1, open=frames.pack_open(space, "raw")))
        assert (await call.read()).HasField("opened")
        await call.write(pb.ClientFrame(id=2, commit=pb.Commit(checksums=bytes((8 << 18) + 8))))
        assert (await call.read()).invalid.field == "checksums"
        await call.write(pb.ClientFrame(id=3, lookup=pb.Lookup(tokens=bytes(64))))
        assert (await call.read()).HasField("found")


async def test_a_client_name_that_is_too_long_is_refused_by_name(open_door) -> None:
    door = await open_door()
    space = Namespace(b"weights of a model", BlockLayout(1, 1, 2, 4, 8, "float32"))
    async with open_channel(door.uds) as channel:
        call = session_call(channel)
        await call.write(pb.ClientFrame(id=1, open=frames.pack_open(space, "x" * 300)))
        assert (await call.read()).refused.field == "client"


async def test_what_a_node_may_borrow_is_counted_by_who_it_is(open_door, tools, identities, token) -> None:
    door = await open_door(identities=identities(tools.row("node-b", "node")))
    asked = []

    class Fetching:
        async def fetch(self, request):
            asked.append(request.node)
            yield pb.FetchPart(offer=pb.Offer())

    door.servicer.fetching = Fetching()
    for address, shown in ((door.tcp, tools.credentials(token=token("node-b"))), (door.uds, None)):
        client = PeerClient(address, shown)
        async with client.fetch(pb.FetchRequest(node="somebody else"), timeout_s=5) as answer:
            await answer.offer()
        await client.close()
    assert asked == ["node-b", "somebody else"]
    stranger = PeerClient(door.tcp)
    with pytest.raises(PeerError) as trouble:
        async with stranger.fetch(pb.FetchRequest(node="node-b"), timeout_s=5) as answer:
            await answer.offer()
    await stranger.close()
    assert (trouble.value.reason, trouble.value.sure) == ("denied", True)
