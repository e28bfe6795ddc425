"""Real sidecars and who routes by them: events over gRPC and ZeroMQ across a crash, and scores over two nodes."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys

import httpx
import msgspec
import numpy as np
import pytest
import zmq
import zmq.asyncio
from kvterrace.kvstore.service.admin import clear_store, fetch_scores
from kvterrace.kvstore.service.channel import open_channel
from kvterrace.kvstore.service.stub import events_call
from kvterrace.kvstore.types import HbmChange
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import block_keys, unpack_tokens

pytestmark = pytest.mark.service

BLOCK_TOKENS = 16


class Subscriber:
    """Keeps a view by gRPC, and goes on where it was when it comes back."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.has: dict[str, set[bytes]] = {}
        self.epoch, self.next, self.resets = b"", 0, 0
        self.engines: set[str] = set()
        self.labels: set[str] = set()

    async def read(self, quiet_s: float = 0.3) -> None:
        """Until nothing has come for a while."""
        async with open_channel(self.address) as channel:
            call = events_call(channel, pb.EventsRequest(epoch=self.epoch, next=self.next, tokens=True))
            with contextlib.suppress(TimeoutError):
                while True:
                    async with asyncio.timeout(quiet_s):
                        batch = await call.read()
                    assert isinstance(batch, pb.EventBatch)
                    self.apply(batch)

    def apply(self, batch: pb.EventBatch) -> None:
        if batch.reset:
            self.has.clear()
            self.resets += 1
        for event in batch.events:
            keys = self.has.setdefault(event.tier, set())
            named = {event.keys[at : at + 32] for at in range(0, len(event.keys), 32)}
            assert event.kind == pb.BlockEvent.CLEARED or len(named) == event.count
            if event.kind == pb.BlockEvent.STORED:
                assert event.block_tokens == BLOCK_TOKENS
                assert set(block_keys(event.parent, event.tokens, BLOCK_TOKENS)) == named
                keys |= named
                self.labels.add(event.label)
            elif event.kind == pb.BlockEvent.REMOVED:
                keys -= named
            else:
                keys.clear()
            if event.engine:
                self.engines.add(event.engine)
        self.epoch, self.next = batch.epoch, batch.sequence + 1

    def count(self, tier: str) -> int:
        return len(self.has.get(tier, ()))


def report(client, prompt: bytes, blocks: int) -> HbmChange:
    size = BLOCK_TOKENS * 4
    return HbmChange(np.arange(blocks, dtype=np.uint32), prompt[: blocks * size])


async def test_a_subscriber_follows_a_sidecar_through_a_clear_and_a_crash(own, connect, tools, namespace):
    own.start()
    one = await connect(own.address)
    subscriber, prompt = Subscriber(own.address), tools.tokens(12)
    assert await tools.save(one, prompt)
    await subscriber.read()
    keys = set(block_keys(namespace.fingerprint(), prompt, BLOCK_TOKENS))
    assert (subscriber.has["dram"], subscriber.resets, subscriber.labels) == (keys, 1, {"tiny"})
    assert await tools.save(one, tools.tokens(3, 9000))
    await one.hbm([report(one, prompt, 5)], whole=True)
    await subscriber.read()
    assert (subscriber.count("dram"), subscriber.count("hbm"), subscriber.resets) == (15, 5, 1), "a replay"
    assert subscriber.engines == {"test"}
    await clear_store(own.address, b"", timeout_s=3.0)
    await subscriber.read()
    assert (subscriber.count("dram"), subscriber.count("hbm")) == (0, 5)
    assert await tools.save(one, prompt)
    await subscriber.read()
    old = subscriber.epoch
    own.kill()
    own.start()
    await subscriber.read()
    assert subscriber.epoch != old
    assert (subscriber.count("dram"), subscriber.count("hbm"), subscriber.resets) == (0, 0, 2), "no ghosts"


async def test_only_what_was_asked_for_comes_and_nonsense_names_its_field(served, connect, tools, namespace):
    one = await connect(served.address)
    assert await tools.save(one, tools.tokens(4))
    async with open_channel(served.address) as channel:
        space = namespace.fingerprint()
        call = events_call(channel, pb.EventsRequest(fingerprint=space, tiers=["hbm", "dram"]))
        batch = await call.read()
        assert [(event.fingerprint, event.count, event.tokens) for event in batch.events] == [(space, 4, b"")]
        for wrong in (pb.EventsRequest(tiers=["tape"]), pb.EventsRequest(fingerprint=b"short")):
            with pytest.raises(Exception, match=r"tiers: |fingerprint: "):
                await events_call(channel, wrong).read()


async def a_stop_ends_streams_at_once(own) -> None:
    async with open_channel(own.address) as channel:
        call = events_call(channel, pb.EventsRequest())
        assert (await call.read()).reset
        own.signal(signal.SIGTERM)
        began = asyncio.get_running_loop().time()
        with contextlib.suppress(Exception):
            while isinstance(await call.read(), pb.EventBatch):
                pass
        assert asyncio.get_running_loop().time() - began < 3.0
        assert await asyncio.to_thread(own.wait) == 0


async def test_vllms_format_is_published_and_replayed(own, connect, tools):
    own.start("--events-zmq", "tcp://127.0.0.1:0", "--events-zmq-replay", "tcp://127.0.0.1:0")

    async def bound() -> bool:
        return own.output().count("events on") == 2

    await tools.until(bound, 10.0)
    urls = [line.split(" on ")[1].strip() for line in own.output().splitlines() if line.startswith("events on")]
    context = zmq.asyncio.Context()
    try:
        sub, replay = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        sub.setsockopt(zmq.SUBSCRIBE, b"kv-events")
        sub.connect(urls[0])
        replay.connect(urls[1])
        await asyncio.sleep(0.2)
        one, prompt = await connect(own.address), tools.tokens(6)
        assert await tools.save(one, prompt)
        async with asyncio.timeout(5):
            topic, _, payload = await sub.recv_multipart()
        stored = msgspec.msgpack.decode(payload)[1][-1]
        assert (topic, stored["type"], stored["medium"], stored["block_size"]) == (
            b"kv-events",
            "BlockStored",
            "CPU",
            16,
        )
        assert stored["token_ids"] == list(unpack_tokens(prompt))
        await replay.send_multipart([b"", bytes(8)])
        kinds: list[str] = []
        async with asyncio.timeout(5):
            while (parts := await replay.recv_multipart())[2]:
                kinds += [event["type"] for event in msgspec.msgpack.decode(parts[2])[1]]
        assert parts[1] == b"\xff" * 8
        assert kinds == ["AllBlocksCleared", "BlockStored"]
        await a_stop_ends_streams_at_once(own)
    finally:
        context.destroy(linger=0)


async def test_scores_of_two_nodes_and_their_engines_and_of_one_that_is_gone(node, connect, tools, namespace, tmp_path):
    a, b = node("a", "--http", "127.0.0.1:0"), node("b")
    one, two = await connect(a.address), await connect(b.address)
    prompt = tools.tokens(20)
    await tools.save(one, prompt[: 4 * 64])
    await tools.save(two, prompt[: 16 * 64])
    await two.hbm([report(two, prompt, 18)], whole=True)
    asked = pb.ScoreRequest(fingerprint=namespace.fingerprint(), tokens=prompt, deadline_s=2.0)

    async def scores(**fields) -> pb.ScoreReply:
        wanted = pb.ScoreRequest()
        wanted.CopyFrom(asked)
        wanted.MergeFrom(pb.ScoreRequest(**fields))
        return await fetch_scores(a.address, wanted, timeout_s=5.0)

    async def both() -> bool:
        return len((await scores()).nodes) == 2

    await tools.until(both, 10.0)
    reply = await scores()
    rows = {each.node: each for each in reply.nodes}
    assert reply.full_tokens == 320
    assert (dict(rows["a"].tiers), dict(rows["b"].tiers)) == ({"dram": 64}, {"dram": 256})
    assert [(each.engine, each.tokens) for each in rows["b"].engines] == [("test", 288)]
    assert rows["b"].exact
    assert [each.node for each in (await scores(local=True)).nodes] == ["a"]
    async with httpx.AsyncClient() as client:
        body = {"namespace": "tiny", "tokens": list(map(int, unpack_tokens(prompt))), "deadline_s": 2.0}
        answer = (await client.post(f"{a.announced('http')}/score", json=body)).json()
        assert {each["node"]: each["tokens"] for each in answer["nodes"]} == {"a": 64, "b": 256}
        metrics = (await client.get(f"{a.announced('http')}/metrics")).text
        assert "kvterrace_scores_total" in metrics
        assert "kvterrace_events_subscribers 0.0" in metrics
    ids = tmp_path / "ids.json"
    ids.write_text(json.dumps(body["tokens"]))
    flags = ["--namespace", namespace.fingerprint().hex(), "--tokens", str(ids), "--address", a.address]
    run = [sys.executable, "-m", "kvterrace.kvstore", "score", *flags, "--deadline", "2"]
    said = await asyncio.to_thread(subprocess.run, run, capture_output=True, text=True, timeout=30, check=True)
    assert {"a: 64 tokens: dram 64", "b: 256 tokens: dram 256"} <= set(said.stdout.splitlines())
    b.signal(signal.SIGSTOP)
    gone = await scores(deadline_s=0.5)
    row = gone.nodes[1]
    assert (row.node, row.exact, row.error) == ("b", False, "deadline")
    assert 0 <= row.tokens <= 256
