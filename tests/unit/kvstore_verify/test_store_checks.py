"""Each check of a store finds the fault that it is for: a store in this process, whole or with that fault built in."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from kvterrace.kvstore import residents, session
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.embedded import EmbeddedClient
from kvterrace.kvstore.service.report import status_reply
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.verify import isolation, store_checks
from kvterrace.kvstore.verify.report import Failed, Skipped
from kvterrace.kvstore.verify.scratch import Scratch
from kvterrace.proto import Namespace, kv_pb2

pytestmark = pytest.mark.unit


class Here(Scratch):
    """On a store in this process."""

    def __init__(self, store: Store) -> None:
        super().__init__("unix:/nowhere")
        self.store = store
        self._opened: list[EmbeddedClient] = []

    async def connect(self, namespace: Namespace, address: object = None) -> EmbeddedClient:  # type: ignore[override]
        client = EmbeddedClient(self.store, namespace)
        await client.start()
        self._opened.append(client)
        return client

    async def status(self) -> kv_pb2.StatusReply:
        return status_reply(self.store.stats())

    async def clear(self) -> None:
        await self.store.clear()

    async def clean(self) -> None:
        for client in self._opened:
            await client.close()


@contextlib.asynccontextmanager
async def scratch(capacity_bytes: int = 8 << 20) -> AsyncIterator[Here]:
    store = Store(Arena.anonymous(capacity_bytes))
    async with Here(store) as made:
        yield made
    store.check()
    store.close()


ALL: list[Callable[[Scratch], Awaitable[str]]] = [
    store_checks.round_trip,
    store_checks.boundaries,
    store_checks.corruption,
    store_checks.torn_write,
    store_checks.leases,
    isolation.namespaces,
    lambda made: store_checks.capacity(made, 12 << 20),
]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_checks, "WRITE_S", 0.0)


@pytest.mark.parametrize("check", ALL)
async def test_a_whole_store_passes(check: Callable[[Scratch], Awaitable[str]]) -> None:
    async with scratch() as made:
        assert await check(made)


async def test_blocks_of_another_prompt_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = residents.Residents.read

    def swapped(self, lease_id, match, skip):
        slots = read(self, lease_id, match, skip)
        for column in (slots.slots, slots.generations, slots.checksums):
            column[:] = column[::-1].copy()  # whole blocks, in another order: each checksum holds
        return slots

    monkeypatch.setattr(residents.Residents, "read", swapped)
    async with scratch() as made:
        with pytest.raises(Failed, match="passes its checksum and is not what was written"):
            await store_checks.round_trip(made)


async def test_blocks_that_stay_although_they_are_corrupt_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    release = session.Session.release
    monkeypatch.setattr(session.Session, "release", lambda self, lease, corrupt=(): release(self, lease))
    async with scratch() as made:
        with pytest.raises(Failed, match="1 damaged blocks were given out again"):
            await store_checks.corruption(made)


async def test_a_reserved_block_that_can_be_seen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    reserve = session.Session.reserve

    def hasty(self, tokens, *, start, count, retention=()):
        given = reserve(self, tokens, start=start, count=count, retention=retention)
        self.commit(given.lease, [0] * len(given.blocks))
        return given

    monkeypatch.setattr(session.Session, "reserve", hasty)
    async with scratch() as made:
        with pytest.raises(Failed, match="fail their checksum"):
            await store_checks.torn_write(made)


async def test_a_generation_that_stands_still_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arena, "free_slots", lambda self, slots: None)
    monkeypatch.setattr(store_checks, "SETTLE_S", 0.05)
    async with scratch() as made:
        with pytest.raises(Failed, match="a late copy would pass"):
            await store_checks.leases(made)


async def test_a_leased_slot_that_is_used_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    clear = Here.clear

    async def careless(self: Here) -> None:
        await clear(self)
        view = self.store.arena.view(4096, 4096)
        view.data[:] = 0

    monkeypatch.setattr(Here, "clear", careless)
    async with scratch() as made:
        with pytest.raises(Failed, match="leased blocks changed"):
            await store_checks.leases(made)


@pytest.mark.parametrize("field", ["adapter_digest", "producer", "first_layer", "dtype", "weights_digest"])
async def test_a_field_that_is_not_in_the_identity_is_noticed(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    identity = Namespace.identity
    monkeypatch.setattr(
        Namespace,
        "identity",
        lambda self: tuple((name, b"" if name == field else value) for name, value in identity(self)),
    )
    async with scratch() as made:
        with pytest.raises(Failed, match=f"with another {field} 4 blocks of a foreign namespace"):
            await isolation.namespaces(made)


async def test_more_than_the_capacity_is_noticed() -> None:
    async with scratch() as made:
        status = made.status

        async def boasting() -> kv_pb2.StatusReply:
            reply = await status()
            reply.tiers[0].capacity_bytes = 4096
            return reply

        made.status = boasting  # type: ignore[method-assign]
        with pytest.raises(Failed, match=r"dram uses .* bytes of 4,096"):
            await store_checks.capacity(made, 4 << 20)


async def test_a_store_without_room_is_no_failure() -> None:
    async with scratch(64 << 10) as made:
        for check in (store_checks.boundaries, store_checks.corruption):
            with pytest.raises(Skipped, match="no room"):
                await check(made)


async def test_blocks_that_others_needed_the_room_of_are_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = session.Session.commit

    def crowded(self, lease, checksums):
        done = commit(self, lease, checksums)
        self._space.evict(1)
        return done

    monkeypatch.setattr(session.Session, "commit", crowded)
    async with scratch() as made:
        with pytest.raises(Skipped, match=r"blocks of ours had to leave meanwhile \(evicted\)"):
            await store_checks.boundaries(made)


async def test_tenants_and_the_capacity_may_be_left_out() -> None:
    async with scratch() as made:
        with pytest.raises(Skipped, match="give --tenant-token-file twice"):
            await isolation.tenants(made, [])
        with pytest.raises(Skipped, match="--max-bytes 0"):
            await store_checks.capacity(made, 0)
