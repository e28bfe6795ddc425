"""A node that leaves: who gets what, what is left behind and why, and that it ends by its deadline."""

import asyncio
import time

import pytest
from kvterrace.kvstore.elsewhere import Holder
from kvterrace.kvstore.handover.drain import Drain
from kvterrace.kvstore.handover.paths import unpack_path
from kvterrace.kvstore.peer.client import PeerError
from kvterrace.proto import kv_pb2 as pb

from .lower_bench import PAGE, FakeTier, LowerBench

pytestmark = pytest.mark.unit


class Taker:
    """One other node, as its client. room: blocks it takes; dies: after so many paths; hangs: at the first."""

    def __init__(self, room: int = 1000, dies: int = 1000, *, hangs: bool = False, busy: int = 0) -> None:
        self.room, self.dies, self.hangs, self.busy = room, dies, hangs, busy
        self.took: list[bytes] = []
        self.has: set[bytes] = set()

    async def take_over(self, request: pb.TakeOverRequest, *, timeout_s: float) -> pb.TakeOverReply:
        if not request.HasField("path"):
            return pb.TakeOverReply(free_bytes=self.room * PAGE)
        if self.hangs:
            await asyncio.Event().wait()
        if len(self.took) >= self.dies:
            raise PeerError("unreachable", "killed")
        if self.busy:
            self.busy -= 1
            return pb.TakeOverReply(free_bytes=self.room * PAGE, reason="busy")
        path = unpack_path(request.path)
        if path.tokens in self.has:
            return pb.TakeOverReply(blocks=path.end, free_bytes=self.room * PAGE)
        if path.blocks > self.room:
            return pb.TakeOverReply(free_bytes=self.room * PAGE, reason="full")
        self.room -= path.blocks
        self.took.append(path.tokens)
        return pb.TakeOverReply(blocks=path.end, fetched=path.blocks, free_bytes=self.room * PAGE)


class Town:
    """Neighbours that are Takers. known: who has a prompt, for the directory."""

    node = "a"

    def __init__(self, **takers: Taker) -> None:
        self.takers = takers
        self.known: dict[str, int] = {}
        self.draining = False

    def others(self, *, staying: bool) -> list[str]:
        assert staying
        return list(self.takers)

    def client(self, node: str) -> Taker:
        return self.takers[node]

    def set_draining(self) -> None:
        self.draining = True

    async def find(self, fingerprint, keys, first, deadline_s):
        return [Holder(node, blocks) for node, blocks in self.known.items()]


@pytest.fixture
async def bench():
    made = LowerBench(64, FakeTier())
    for prompt in range(1, 7):
        made.save(made.prompt(prompt, 4))
    yield made
    made.store.check()
    await made.store.stop(1.0)
    made.store.close()


async def drained(bench: LowerBench, town: Town | None, deadline_s: float = 5.0) -> tuple[pb.DrainProgress, list[str]]:
    left: list[str] = []
    drain = Drain(bench.store.stock, bench.store.flush, lambda: left.append("left"))
    drain.neighbours = town
    drain.begin(deadline_s, stay=False)
    drain.begin(0.0, stay=True)  # changes nothing
    said = [each async for each in drain.watch()]
    return said[-1], left


async def test_everything_goes_to_who_has_most_room(bench):
    town = Town(small=Taker(5), large=Taker(100))
    said, left = await drained(bench, town)
    assert (said.phase, said.handed_blocks, said.handed_bytes, dict(said.left)) == ("done", 24, 24 * PAGE, {})
    assert dict(said.to) == {"large": 24}
    assert (left, town.draining, said.pending_blocks) == (["left"], True, 0)


async def test_what_others_have_is_not_given_again(bench):
    town = Town(b=Taker(100), c=Taker(50))
    town.known = {"c": 4}
    town.takers["c"].has = {bench.prompt(prompt, 4) for prompt in (1, 2)}
    said, _ = await drained(bench, town)
    assert (said.safe_blocks, said.handed_blocks) == (8, 16)


async def test_when_nobody_has_room_the_rest_is_left_and_said(bench):
    said, _ = await drained(bench, Town(b=Taker(9), c=Taker(4)))
    assert said.handed_blocks == 12
    assert (dict(said.left), said.left_bytes) == ({"full": 12}, 12 * PAGE)


async def test_who_is_killed_in_the_middle_is_replaced_by_who_is_left(bench):
    town = Town(b=Taker(100, dies=2), c=Taker(50))
    said, _ = await drained(bench, town)
    assert said.handed_blocks == 24
    assert said.to["b"] == 8
    said, left = await drained(bench, Town(b=Taker(100, dies=0)))
    assert (dict(said.left), left) == ({"unreachable": 24}, ["left"])


async def test_who_is_busy_is_asked_again(bench):
    said, _ = await drained(bench, Town(b=Taker(100, busy=3)))
    assert (said.handed_blocks, dict(said.left)) == (24, {})


async def test_who_hangs_costs_no_more_than_the_deadline(bench):
    began = time.monotonic()
    said, left = await drained(bench, Town(b=Taker(100, hangs=True)), deadline_s=0.5)
    assert time.monotonic() - began < 3
    assert (said.phase, dict(said.left), said.waiting_blocks, left) == ("done", {"deadline": 24}, 0, ["left"])


async def test_alone_it_writes_what_waits_and_leaves(bench):
    bench.tier.gate.clear()
    bench.save(bench.prompt(9, 4))
    asyncio.get_running_loop().call_later(0.1, bench.tier.gate.set)
    said, left = await drained(bench, None)
    assert (dict(said.left), said.pending_blocks, left) == ({"alone": 28}, 0, ["left"])
    assert len(bench.tier.records) == 28


async def test_what_cannot_be_written_in_time_is_said(bench):
    bench.tier.gate.clear()
    bench.save(bench.prompt(9, 4))
    said, _ = await drained(bench, Town(), deadline_s=0.3)
    bench.tier.gate.set()
    assert said.pending_blocks > 0
    assert dict(said.left) == {"nobody": 28}
