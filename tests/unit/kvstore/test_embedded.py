"""EmbeddedClient: the same promises as over a socket, and trouble is a result here too."""

import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.embedded import EmbeddedClient
from kvterrace.kvstore.errors import SessionRefused
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.types import StoreClient
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.unit

NAMESPACE = Namespace(b"weights-0", BlockLayout(1, 1, 2, 4, 64, "float16"))
TOKENS = pack_tokens(list(range(12)))


@pytest.fixture
def store():
    made = Store(Arena.anonymous(1 << 20))
    yield made
    made.check()
    made.close()


async def test_bytes_come_back(store):
    client: StoreClient = EmbeddedClient(store, NAMESPACE)
    assert (client.connected, client.arena) == (False, None)
    await client.start()
    assert client.connected
    reserved = await client.reserve(TOKENS, start=0, count=3)
    size = client.arena.block_bytes
    for number, ref in enumerate(reserved.slots):
        reserved.arena.block(ref.slot)[:size] = number + 1
    sums = [xxhash.xxh3_64_intdigest(client.arena.block(ref.slot)[:size]) for ref in reserved.slots]
    assert await client.commit(reserved.lease, sums)
    got = await client.acquire(TOKENS, skip=1, deadline_s=0.1)
    assert [got.arena.block(ref.slot)[0] for ref in got.slots] == [2, 3]
    assert [ref.checksum for ref in got.slots] == sums[1:]
    await client.release(got.lease, corrupt=[1])
    assert len((await client.acquire(TOKENS, skip=0, deadline_s=0)).slots) == 2
    await client.close()
    assert store.stats().tiers[0].leased_bytes == 0


async def test_before_start_after_close_and_without_a_store_it_is_a_miss(store):
    client = EmbeddedClient(store, NAMESPACE)
    for turn in range(3):
        got = await client.acquire(TOKENS, skip=2, deadline_s=1)
        assert (got.lease, got.first, got.slots, got.reason) == (0, 2, (), "disconnected")
        assert (await client.reserve(TOKENS, start=0, count=1)).reason == "disconnected"
        assert not await client.commit(1, [1])
        await client.abort(1)
        await client.release(1, corrupt=[0])
        if turn == 0:
            await client.start()
            await client.close()
        if turn == 1:
            await client.start()
            store.close()
            assert not client.connected
    await client.close()


async def test_a_refusal_is_raised_at_start(store):
    await EmbeddedClient(store, NAMESPACE).start()
    other = Namespace(b"weights-0", BlockLayout(2, 1, 2, 4, 64, "float16"))
    with pytest.raises(SessionRefused, match="kv_heads"):
        await EmbeddedClient(store, other).start()
