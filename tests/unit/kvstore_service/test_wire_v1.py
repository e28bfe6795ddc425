"""A rolling upgrade: what version 1 says is understood as it was, and answered as it expects.

tests/golden/wire_v1/messages.json was written by the last program that spoke version 1 alone; it never changes.
"""

import json
from pathlib import Path

import pytest
from kvterrace.kvstore.cluster.membership import Member, parse_member
from kvterrace.kvstore.peer import bulk_wire
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.service import frames
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "wire_v1" / "messages.json").read_text())
MESSAGES = {"ClientFrame": pb.ClientFrame, "ServerFrame": pb.ServerFrame}
MESSAGES |= {"FetchRequest": pb.FetchRequest, "FetchPart": pb.FetchPart}


def read(kind: str, name: str):
    return MESSAGES[kind].FromString(bytes.fromhex(GOLDEN[kind][name]))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in MESSAGES for name in GOLDEN[kind]])
def test_every_message_means_what_it_meant(kind: str, name: str) -> None:
    message = read(kind, name)
    assert message.SerializeToString(deterministic=True).hex() == GOLDEN[kind][name]


def test_an_older_engine_opens_a_session_of_the_same_namespace() -> None:
    opening = read("ClientFrame", "open").open
    assert opening.wire_version == 1 >= frames.MIN_WIRE_VERSION
    namespace = frames.unpack_namespace(opening)
    assert namespace.fingerprint() == opening.fingerprint == bytes.fromhex(GOLDEN["namespace"]["fingerprint"])
    again = frames.pack_open(namespace, "engine")
    assert again.namespace == opening.namespace


def test_the_values_of_frames_are_read_as_they_were() -> None:
    acquired = frames.unpack_slots(read("ServerFrame", "acquired").acquired.slots)
    assert (acquired.slots.tolist(), acquired.checksums.tolist()) == ([3, 7], [5, 2**64 - 1])
    reserve = read("ClientFrame", "reserve").reserve
    (wish,) = frames.unpack_retention(reserve.retention)
    assert (wish.start, wish.end, wish.retention.priority, wish.retention.pinned) == (0, 1, 60, True)
    kinds = [each.WhichOneof("body") for each in read("ClientFrame", "riders").before]
    assert kinds == ["prefetch", "cancel_prefetch", "observe", "retain"]


class Nobody:
    async def lend(self, *_, **__):
        return None


@pytest.mark.parametrize("name", ["bulk", "grpc"])
async def test_an_older_node_is_answered(name: str) -> None:
    parts = [part async for part in Fetching(Nobody()).fetch(read("FetchRequest", name))]
    assert parts == [read("FetchPart", "nothing")]


async def test_a_version_that_is_not_known_is_refused_by_name() -> None:
    asked = read("FetchRequest", "grpc")
    asked.wire_version = frames.WIRE_VERSION + 1
    (part,) = [part async for part in Fetching(Nobody()).fetch(asked)]
    assert (part.refused.field, part.refused.ours) == ("wire_version", str(frames.WIRE_VERSION))


@pytest.mark.parametrize(("name", "draining"), [("plain", False), ("draining", True)])
def test_an_older_member_is_one(name: str, draining: bool) -> None:
    expected = Member("old", 0x0123456789ABCDEF, "127.0.0.1:9200", "127.0.0.1:9201", 1, "0.1.0", draining)
    assert parse_member(GOLDEN["member"][name].encode()) == expected


def test_an_older_program_reads_a_member_of_today() -> None:
    """It wants these fields, of these types, and passes over others."""
    said = json.loads(Member("new", 1, "127.0.0.1:1", "127.0.0.1:2", frames.WIRE_VERSION, "0.2.0").to_json())
    for field, value in json.loads(GOLDEN["member"]["plain"]).items():
        assert type(said[field]) is type(value)


@pytest.mark.parametrize(("theirs", "common"), [(0, None), (1, 1), (2, 2), (3, 3), (99, 3)])
def test_each_is_asked_in_the_latest_version_that_both_speak(theirs: int, common: int | None) -> None:
    assert frames.common_version(theirs) == common


def test_the_bulk_channel_begins_as_it_did() -> None:
    golden = GOLDEN["bulk"]
    hello = bulk_wire.unpack_hello(bytes.fromhex(golden["hello"]))
    assert bulk_wire.pack_hello(hello.ticket).hex() == golden["hello"]
    granted = bulk_wire.unpack_answer(bytes.fromhex(golden["granted"]))
    assert (granted.status, granted.length_bytes) == (bulk_wire.GRANTED, 4096)
    assert bulk_wire.unpack_answer(bytes.fromhex(golden["refused"])).status == bulk_wire.REFUSED
    with pytest.raises(bulk_wire.WireError, match="version"):
        bulk_wire.unpack_answer(bytes.fromhex(golden["wrong_version"]))
