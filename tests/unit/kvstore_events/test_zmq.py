"""What vLLM's own subscribers would make of the stream: structs declared as vLLM declares them, and its replay."""

import asyncio
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from kvterrace.kvstore.errors import KvterraceError
from kvterrace.kvstore.events.zmq_publisher import ZmqOptions, ZmqPublisher
from kvterrace.radix import block_keys, unpack_tokens

pytestmark = pytest.mark.unit


def structs(array_like: bool):
    """vLLM's: arrays until 0.23, maps within the batch's array since."""

    class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
        ts: float
        events: list[Any]
        data_parallel_rank: int | None = None

    class KVCacheEvent(msgspec.Struct, array_like=array_like, omit_defaults=True, tag=True):
        pass

    class BlockStored(KVCacheEvent):
        block_hashes: list[bytes | int]
        parent_block_hash: bytes | int | None
        token_ids: list[int]
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: list[Any] | None = None

    class BlockRemoved(KVCacheEvent):
        block_hashes: list[bytes | int]
        medium: str | None

    class AllBlocksCleared(KVCacheEvent):
        pass

    class KVEventBatch(EventBatch):
        events: list[BlockStored | BlockRemoved | AllBlocksCleared]

    return KVEventBatch


class Router:
    """A subscriber that asks for a replay when it sees a gap."""

    def __init__(self, publisher, urls, encoding: str = "map", topic: bytes = b"kv-events") -> None:
        self.has: dict[tuple[str, int | bytes], list[int]] = {}
        self.cleared = self.gaps = 0
        self.last = -1
        self.topics: set[bytes] = set()
        self._decoder = msgspec.msgpack.Decoder(structs(encoding == "array"))
        self._context = zmq.asyncio.Context()
        self.sub = self._context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, topic)
        self.sub.connect(urls[0])
        self._replay_url = urls[1] if len(urls) > 1 else ""

    def apply(self, payload: bytes) -> None:
        batch = self._decoder.decode(payload)
        assert batch.data_parallel_rank == 0
        for event in batch.events:
            kind = type(event).__name__
            if kind == "AllBlocksCleared":
                self.has.clear()
                self.cleared += 1
            elif kind == "BlockStored":
                assert len(event.token_ids) == len(event.block_hashes) * event.block_size
                for at, key in enumerate(event.block_hashes):
                    own = event.token_ids[at * event.block_size : (at + 1) * event.block_size]
                    self.has[event.medium, key] = own
            else:
                for key in event.block_hashes:
                    self.has.pop((event.medium, key), None)

    async def read(self, quiet_s: float = 0.1) -> None:
        """Until nothing has come for a while."""
        while await self.sub.poll(quiet_s * 1000):
            topic, sequence, payload = await self.sub.recv_multipart()
            self.topics.add(topic)
            number = int.from_bytes(sequence, "big")
            if number > self.last + 1 and self._replay_url:
                self.gaps += 1
                await self.replay(self.last + 1)
            if number > self.last:
                self.apply(payload)
                self.last = number

    async def replay(self, start: int) -> int:
        """As vLLM's example does; how many messages came."""
        asking, count = self._context.socket(zmq.DEALER), 0
        asking.connect(self._replay_url)
        await asking.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            async with asyncio.timeout(3):
                _, sequence, payload = await asking.recv_multipart()
            if not payload:
                assert sequence == b"\xff" * 8
                break
            number = int.from_bytes(sequence, "big")
            assert number > self.last
            self.apply(payload)
            self.last, count = number, count + 1
        asking.close(linger=0)
        return count

    def close(self) -> None:
        self._context.destroy(linger=0)


@pytest.fixture
async def publish():
    made: list = []

    async def make(bench, *, replay: bool = True, **options):
        options = {"topic": "kv-events", "replay_endpoint": "tcp://127.0.0.1:*" if replay else "", **options}
        label_of = bench.store.holdings.label_of
        wanted = ZmqOptions("tcp://127.0.0.1:*", **options)
        publisher = ZmqPublisher(bench.feed, bench.store.holdings.hbm, label_of, wanted)
        made.append(publisher)
        urls = await publisher.start()
        encoding = options.get("encoding", "map")

        async def listen() -> Router:
            router = Router(publisher, urls, encoding)
            made.append(router)
            await asyncio.sleep(0.1)  # until the subscription has arrived
            return router

        return publisher, listen

    yield make
    for each in made:
        if isinstance(each, Router):
            each.close()
        else:
            await each.stop()


def expected(bench, engines=(), hashes="int") -> set:
    names = {"dram": "CPU", "nvme": "DISK", "hbm": "GPU"}
    as_hash = (lambda key: int.from_bytes(key[-8:], "big")) if hashes == "int" else bytes
    return {(names[tier], as_hash(key)) for (tier, _, _), keys in bench.truth(engines).items() for key in keys}


@pytest.mark.parametrize(("encoding", "hashes"), [("map", "int"), ("array", "bytes")])
async def test_a_router_made_for_vllm_holds_what_the_node_holds(
    events_bench, publish, prompt, make_engine, encoding, hashes
):
    b = events_bench(16)
    engine = make_engine(b.lower.session)
    _, listen = await publish(b, encoding=encoding, hashes=hashes)
    router = await listen()
    for name in range(6):  # more than DRAM has slots for
        await b.lower.saved(prompt(name, 4))
        engine.compute(prompt(name, 3))
    await router.read()
    assert set(router.has) == expected(b, [engine], hashes)
    assert router.topics == {b"kv-events"}
    key = block_keys(b.lower.session.fingerprint, prompt(5, 4), 4)[2]
    key = key if hashes == "bytes" else int.from_bytes(key[-8:], "big")
    assert router.has["CPU", key] == list(unpack_tokens(prompt(5, 4))[8:12])


async def test_a_gap_is_closed_by_a_replay_and_a_large_one_by_everything_anew(events_bench, publish, prompt):
    b = events_bench(32)
    publisher, listen = await publish(b, buffer_messages=8)
    router = await listen()
    await b.lower.saved(prompt(1, 2))
    await router.read()
    behind = await listen()  # begins in the middle: what was sent before is a gap to it
    await b.lower.saved(prompt(2, 2))
    await behind.read()
    assert (behind.gaps, publisher.snapshot_replays) == (1, 0)
    assert set(behind.has) == expected(b)
    late = await listen()
    for name in range(3, 9):
        await b.lower.saved(prompt(name, 1))
        await asyncio.sleep(0.01)
    late.last = -1
    while await late.sub.poll(50):
        await late.sub.recv_multipart()  # lost on the way
    assert await late.replay(0) <= publisher.messages
    assert publisher.snapshot_replays == 1
    assert (late.cleared, set(late.has)) == (1, expected(b))
    await b.lower.saved(prompt(20, 2))
    await late.read()
    assert (late.gaps, set(late.has)) == (0, expected(b)), "the stream goes on where the replay ended"


async def test_clearing_one_namespace_leaves_the_others_known(events_bench, publish, prompt, make_engine):
    b = events_bench(16)
    engine = make_engine(b.lower.session)
    _, listen = await publish(b)
    router = await listen()
    await b.lower.saved(prompt(1, 4))
    engine.compute(prompt(1, 4))
    await router.read()
    before = router.cleared
    await b.store.clear(b.lower.session.fingerprint)
    await router.read()
    assert router.cleared > before
    assert set(router.has) == expected(b, [engine])
    assert {medium for medium, _ in router.has} == {"GPU"}, "the store was cleared, the engine was not"


async def test_a_block_in_two_engines_is_gone_when_both_have_dropped_it(events_bench, publish, prompt, make_engine):
    b = events_bench(16)
    again = b.store.open_session(b.lower.session.namespace, client="other")
    engines = [make_engine(b.lower.session), make_engine(again)]
    _, listen = await publish(b)
    router = await listen()
    for engine in engines:
        engine.compute(prompt(1, 3))
    await router.read()
    assert len(router.has) == 3
    again.close()
    await router.read()
    assert len(router.has) == 3
    engines[0].say_all()
    engines[0].blocks.clear()
    engines[0].say_all()
    await router.read()
    assert router.has == {}


async def test_only_a_label_and_other_names_of_tiers(events_bench, publish, prompt):
    b = events_bench(16)
    _, listen = await publish(b, label="another model")
    router = await listen()
    await b.lower.saved(prompt(1, 4))
    await router.read()
    assert router.has == {}
    _, listen = await publish(b, media={"dram": "CPU_PINNED"})
    router = await listen()
    await router.replay(0)
    assert {medium for medium, _ in router.has} == {"CPU_PINNED", "DISK"}


async def test_a_request_that_makes_no_sense_is_ignored(events_bench, publish, prompt):
    b = events_bench(16)
    _, listen = await publish(b)
    router = await listen()
    asking = router._context.socket(zmq.DEALER)
    asking.connect(router._replay_url)
    for nonsense in ([b"x"], [b"", b"1234567"], [b"", b"1", b"2"]):
        await asking.send_multipart(nonsense)
    await router.replay(0)
    assert not await asking.poll(50)


async def test_an_address_that_is_taken_says_so(events_bench, publish):
    b = events_bench(16)
    publisher, _ = await publish(b)
    url = publisher._sockets[0].getsockopt_string(zmq.LAST_ENDPOINT)
    second = ZmqPublisher(b.feed, b.store.holdings.hbm, lambda _: "", ZmqOptions(url))
    with pytest.raises(KvterraceError, match="--events-zmq: cannot listen on tcp"):
        await second.start()
    await second.stop()


async def test_a_path_has_one_owner_and_is_gone_after_it(events_bench, tmp_path):
    b = events_bench(16)
    path = tmp_path / "events"
    first, second = (
        ZmqPublisher(b.feed, b.store.holdings.hbm, lambda _: "", ZmqOptions(f"ipc://{path}")) for _ in range(2)
    )
    await first.start()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(KvterraceError, match="choose another --events-zmq"):
        await second.start()
    await second.stop()
    assert path.exists()
    await first.stop()
    assert not list(tmp_path.iterdir())
