"""Every RPC with arbitrary, plausible and damaged messages: the server stays up and keeps its counts.

Plausible messages are made from kv.proto itself, so that a new RPC or field is fuzzed from its first day.
"""

import asyncio
import contextlib
import logging

import grpc
import grpc.aio
import numpy as np
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import strategies as st
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.peer.tickets import Tickets
from kvterrace.kvstore.security.audit import AuditLog
from kvterrace.kvstore.security.guard import Guard
from kvterrace.kvstore.security.setup import Security
from kvterrace.kvstore.service import frames
from kvterrace.kvstore.service.channel import open_channel
from kvterrace.kvstore.service.server import GrpcServer
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.service.stub import status_call
from kvterrace.kvstore.store import Store
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

METHODS = sorted(pb.DESCRIPTOR.services_by_name["KVStore"].methods, key=lambda method: method.name)
CALL_S = 0.05
SPACE = Namespace(b"weights of a model", BlockLayout(1, 1, 2, 4, 8, "float32"), label="tiny")
PROMPT = pack_tokens(np.arange(32))
OPEN = frames.pack_open(SPACE, "fuzz")
FRACTIONS = st.sampled_from([0.0, 0.001, 0.02, -1.0, float("nan"), float("inf"), 1e9])
BYTES, TEXT, WHOLE = FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_UINT32
USUAL = {
    ("tokens", BYTES): st.sampled_from([PROMPT, PROMPT[:64], PROMPT[:62], b"", pack_tokens(np.arange(5, 900))]),
    ("fingerprint", BYTES): st.sampled_from([SPACE.fingerprint(), b"", bytes(32), b"short"]),
    ("wire_version", WHOLE): st.sampled_from([0, 1, 2, 3, 4]),
    ("node", TEXT): st.sampled_from(["", "b", "x" * 200]),
    ("set", TEXT): st.sampled_from(["pinned", "ttl_s", "priority", "nothing"]),
}
SMALL = st.one_of(st.integers(0, 12), st.sampled_from([2**31, 2**32 - 1]))


@st.composite
def plausible(draw, kind: Descriptor, depth: int = 0) -> Message:
    """A message of that kind, most of whose fields make sense."""
    message = getattr(pb, kind.name)()
    for field in kind.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            continue
        if not draw(st.integers(0, 3)) or (field.containing_oneof is not None and draw(st.integers(0, 4))):
            continue
        _set(draw, message, field, depth)
    return message


def _set(draw, message: Message, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None:
        if depth < 3:
            values = [draw(plausible(field.message_type, depth + 1)) for _ in range(draw(st.integers(0, 3)))]
            for value in values if field.is_repeated else values[:1]:
                (getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)).CopyFrom(
                    value
                )
        return
    usual = USUAL.get((field.name, field.type))
    one = usual if usual is not None else _scalar(field)
    if field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(one, max_size=4)))
    else:
        setattr(message, field.name, draw(one))


def _scalar(field: FieldDescriptor) -> st.SearchStrategy:
    kinds = FieldDescriptor
    if field.type in (kinds.TYPE_DOUBLE, kinds.TYPE_FLOAT):
        return FRACTIONS
    if field.type == kinds.TYPE_BOOL:
        return st.booleans()
    if field.type == kinds.TYPE_STRING:
        return st.text(max_size=300)
    if field.type == kinds.TYPE_BYTES:
        return st.binary(max_size=80)
    if field.type == kinds.TYPE_UINT64:
        return st.one_of(SMALL, st.just(2**64 - 1))
    if field.type in (kinds.TYPE_INT32, kinds.TYPE_INT64, kinds.TYPE_SINT32, kinds.TYPE_SINT64):
        return st.one_of(st.integers(-3, 12), st.just(2**31 - 1))
    return SMALL


@st.composite
def wire(draw, kind: Descriptor) -> bytes:
    """Bytes of a message, some of them damaged."""
    how = draw(st.integers(0, 5))
    if not how:
        return draw(st.binary(max_size=200))
    data = bytearray(draw(plausible(kind)).SerializeToString())
    if how == 1 and data:
        for _ in range(draw(st.integers(1, 3))):
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


@st.composite
def call(draw):
    """A method and what is sent to it; sessions mostly begin well."""
    method = draw(st.sampled_from(METHODS + [each for each in METHODS if each.name == "Session"] * len(METHODS)))
    if method.name != "Session":
        return method.name, [draw(wire(method.input_type))]
    sent = [draw(wire(method.input_type)) for _ in range(draw(st.integers(0, 8)))]
    good = pb.ClientFrame(id=1, open=OPEN).SerializeToString()
    return method.name, [good, *sent] if draw(st.integers(0, 9)) else sent


class Served:
    """A store with a few blocks, and its server on a Unix socket."""

    def __init__(self, folder) -> None:
        self.stack = contextlib.AsyncExitStack()
        self.folder = folder
        self.errors: list[str] = []
        handler = logging.Handler(logging.ERROR)
        handler.emit = lambda record: self.errors.append(logging.Formatter().format(record))
        logging.getLogger().addHandler(handler)
        self.stack.callback(logging.getLogger().removeHandler, handler)

    async def start(self) -> "Served":
        arena = Arena.create(1 << 20, directory=self.folder)
        self.stack.callback(arena.close)
        self.store = Store(arena)
        self.stack.callback(self.store.close)
        servicer = Servicer(self.store, str(arena.path), arena.boot_id)
        servicer.fetching = Fetching(self.store, Tickets(), "127.0.0.1:1")
        security = Security(Guard(), AuditLog())
        server = GrpcServer(servicer, self.folder / "kv.sock", None, security)
        await server.start()
        self.stack.push_async_callback(server.stop)
        self.channel = await self.stack.enter_async_context(open_channel(server.addresses[0]))
        session = self.store.open_session(SPACE, client="seed", fingerprint=SPACE.fingerprint())
        given = session.reserve(PROMPT, start=0, count=8)
        assert session.commit(given.lease, [1] * len(given.slots))
        session.close()
        return self

    async def survive(self, case: tuple[str, list[bytes]]) -> None:
        name, sent = case
        code = await self._call(f"/kvterrace.v1.KVStore/{name}", sent)
        assert code is not grpc.StatusCode.UNKNOWN
        assert not self.errors, self.errors[-1]
        reply = await status_call(self.channel, pb.StatusRequest(), 5.0)
        for _ in range(200):
            if not reply.sessions:
                break
            await asyncio.sleep(0.005)
            reply = await status_call(self.channel, pb.StatusRequest(), 5.0)
        assert not reply.sessions, "a session outlives its stream"
        self.store.check()

    async def _call(self, path: str, sent: list[bytes]) -> grpc.StatusCode:
        """INTERNAL may be this side's own word for a write that came late; the server's is an error in its log."""
        stream = self.channel.stream_stream(path)(timeout=CALL_S * 4)
        try:
            async with asyncio.timeout(CALL_S * 3):
                for data in sent:
                    await stream.write(data)
                await stream.done_writing()
                while await stream.read() is not grpc.aio.EOF:
                    pass
            return await stream.code()
        except grpc.aio.AioRpcError as error:
            return error.code()
        except asyncio.InvalidStateError:  # the server ended it while this side wrote
            return await stream.code()
        except TimeoutError:
            stream.cancel()
            return grpc.StatusCode.CANCELLED


def test_whatever_is_sent_to_an_rpc_the_server_keeps_its_counts(tmp_path, fuzz, runner) -> None:
    served = runner.run(Served(tmp_path).start())
    try:
        fuzz(lambda case: runner.run(served.survive(case)), call())
    finally:
        runner.run(served.stack.aclose())
