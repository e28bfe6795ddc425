"""A rolling upgrade from wire version 2: what it says is understood, and it is told nothing that it does not know.

tests/golden/wire_v2/messages.json was written by the last program that spoke version 2 alone; it never changes.
"""

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from kvterrace.kvstore import sidecar
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.handover.answering import Answering
from kvterrace.kvstore.security.credentials import CredentialFiles, Credentials
from kvterrace.kvstore.service import frames
from kvterrace.kvstore.service.insight_frames import unpack_receipt
from kvterrace.kvstore.service.stream import SessionStream
from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.kvstore.types import NO_SLOTS, Acquired, Miss, Origin, Receipt, Wait
from kvterrace.proto import BlockLayout, FieldError, Namespace
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "wire_v2" / "messages.json").read_text())
KINDS = [kind for kind in GOLDEN if kind != "namespace"]


def read(kind: str, name: str):
    return getattr(pb, kind).FromString(bytes.fromhex(GOLDEN[kind][name]))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in GOLDEN[kind]])
def test_every_message_means_what_it_meant(kind: str, name: str) -> None:
    assert read(kind, name).SerializeToString(deterministic=True).hex() == GOLDEN[kind][name]


def test_an_older_engine_opens_a_session_of_the_same_namespace() -> None:
    opening = read("ClientFrame", "open").open
    assert frames.MIN_WIRE_VERSION <= opening.wire_version == 2 < frames.WIRE_VERSION
    namespace = frames.unpack_namespace(opening)
    assert namespace.fingerprint() == opening.fingerprint == bytes.fromhex(GOLDEN["namespace"]["fingerprint"])


def test_an_older_engine_neither_says_whose_request_it_is_nor_fails_for_it() -> None:
    asked = read("ClientFrame", "acquire").acquire
    assert frames.unpack_origin(asked) is None
    assert frames.unpack_wait(asked) == Wait(9, 0.25, 1, 2, 0.5)


def test_an_older_answer_gets_the_miss_that_its_reason_says() -> None:
    unpack = lambda name: frames.unpack_acquired(read("ServerFrame", name).acquired, 7, None, 16)  # noqa: E731
    assert unpack("acquired").miss == Miss("evicted", (1 + 2) * 16)
    assert unpack("missed").miss == Miss("never_seen", 16)
    assert unpack("computing").miss is None, "it is asked again"
    assert frames.unpack_found(read("ServerFrame", "found").found).miss is None


def test_an_older_engine_reads_an_answer_of_today() -> None:
    """What it does not know it passes over: what it does know is where it was."""
    today = frames.pack_acquired(Acquired(0, 1, NO_SLOTS, {}, "never_seen", miss=Miss("never_seen", 16)))
    today.ClearField("miss")
    assert (
        pb.ServerFrame(id=3, acquired=today).SerializeToString(deterministic=True).hex()
        == (GOLDEN["ServerFrame"]["missed"])
    )


async def test_requests_of_an_older_engine_are_answered(desk, space) -> None:
    d = desk(64)
    sent: list[pb.ServerFrame] = []
    asked = [read("ClientFrame", name) for name in ("lookup", "acquire", "riders")]

    async def next_frame() -> pb.ClientFrame | None:
        return asked.pop(0) if asked else None

    async def send(frame: pb.ServerFrame) -> None:
        sent.append(frame)

    await SessionStream(d.open(), next_frame, send).run()
    assert [each.WhichOneof("body") for each in sent] == ["found", "acquired"]
    assert (sent[1].acquired.reason, sent[1].acquired.miss.token) == ("never_seen", 4)


async def test_an_older_node_that_hands_over_is_answered() -> None:
    stock = SimpleNamespace(hottest=lambda *_, **__: [], draining=False, free_bytes=lambda: 4096)
    answering = Answering(stock, SimpleNamespace(node="b", tier=lambda _: None))
    assert list(answering.hottest(read("HottestRequest", "ask"))) == []
    reply = await answering.take_over(read("TakeOverRequest", "room"))
    assert (reply.free_bytes, reply.reason) == (4096, "")


class OldSidecar:
    """Link.open of a sidecar that speaks version 2 alone; `posted`: what it is told without being asked."""

    def __init__(self, arena: Arena) -> None:
        self.opened = pb.Opened(session=1, boot_id=arena.boot_id, package_version="0.1", arena_path=str(arena.path))
        self.versions: list[int] = []
        self.credentials: list[object] = []
        self.posted: list[str | None] = []
        self.ended = SimpleNamespace(is_set=lambda: False, wait=self._forever)
        self.why = ""

    async def open(self, _address, opening, _limits, credentials=None):
        self.versions.append(opening.wire_version)
        self.credentials.append(credentials)
        if opening.wire_version != 2:
            return pb.Refused(field="wire_version", message="no", ours="2", theirs=str(opening.wire_version))
        return self

    def post(self, frame: pb.ClientFrame) -> None:
        self.posted.append(frame.WhichOneof("body"))

    async def request(self, frame: pb.ClientFrame, _timeout_s: float) -> pb.ServerFrame:
        old = pb.Acquire.FromString(frame.acquire.SerializeToString())
        assert old.tokens == frame.acquire.tokens
        return pb.ServerFrame(id=1, acquired=pb.Acquired(first=old.skip, reason="evicted"))

    async def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    async def _forever() -> None:
        await asyncio.Event().wait()


async def test_an_older_sidecar_is_asked_in_its_version_and_never_told_of_receipts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, space: Namespace, layout: BlockLayout
) -> None:
    arena = Arena.create(64 * 4096, directory=tmp_path)
    old = OldSidecar(arena)
    monkeypatch.setattr(sidecar, "Link", old)
    shown = Credentials(CredentialFiles())
    client = SidecarClient("unix:/tmp/none.sock", space, credentials=shown)
    try:
        await client.start()
        assert (old.versions, old.credentials) == ([frames.WIRE_VERSION, 2], [shown, shown])
        got = await client.acquire(bytes(64), skip=2, deadline_s=0.0, origin=Origin("chatcmpl-1", "00-a-b-01"))
        assert got.miss == Miss("evicted", 2 * layout.block_tokens)
        await client.served(Receipt("chatcmpl-1", {"computed": 16}))
        await client.observe([(0, 16, 0.1)])
        assert old.posted == ["observe"]
    finally:
        await client.close()
        arena.close()


async def test_without_a_sidecar_the_miss_says_so(space: Namespace, layout: BlockLayout) -> None:
    client = SidecarClient("unix:/tmp/kvterrace-none.sock", space)
    got = await client.acquire(bytes(64), skip=1, deadline_s=0.0)
    assert (got.reason, got.miss) == ("disconnected", Miss("disconnected", layout.block_tokens))
    assert await client.lookup(bytes(64)) is None
    await client.served(Receipt("r", {"computed": 16}))


@pytest.mark.parametrize("field", ["gone_s", "kept_s"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), 1e300])
def test_a_receipt_with_impossible_times_is_refused(field: str, value: float) -> None:
    receipt = pb.Receipt(request_id="r", miss=pb.Miss(reason="evicted", **{field: value}))
    with pytest.raises(FieldError, match=field):
        unpack_receipt(receipt)
