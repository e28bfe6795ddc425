"""A peer that hangs is noticed by the first call that is late."""

import asyncio

import pytest
from kvterrace.kvstore.peer.patience import LEAST_S, Patience
from kvterrace.kvstore.peer.peers import Peers
from kvterrace.kvstore.tiers import Failed, Miss
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_is_usual_is_learned_and_shared_by_those_under_way() -> None:
    clock = Clock()
    patience = Patience(clock)
    for _ in range(30):
        with patience.call(1_000_000):
            clock.now += 0.1
    with patience.call(1_000_000), patience.call(1_000_000) as second:
        assert second.due - clock.now == pytest.approx(LEAST_S + 4 * 0.2)
        clock.now += LEAST_S + 0.39
        assert not patience.late
        clock.now += 0.02
        assert patience.late, "the first one, which had less to share with"
    assert not patience.late


def test_a_call_that_fails_teaches_nothing() -> None:
    clock = Clock()
    patience = Patience(clock)
    before = patience.usual_s(1000)

    def broken() -> None:
        with patience.call(1000):
            clock.now += 9
            assert patience.late
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        broken()
    assert not patience.late
    assert patience.usual_s(1000) == before


async def test_while_a_call_hangs_others_go_elsewhere_and_its_failure_keeps_them_away(peer_bench, tokens):
    clock, gate = Clock(), asyncio.Event()

    async def answer(request, context):
        await gate.wait()
        await context.write(pb.FetchPart(offer=pb.Offer()))

    async with peer_bench.Server(peer_bench.Scripted(answer)) as server:
        peers, member = Peers("b", None, clock=clock), peer_bench.Member(server.address)
        tier = peers.tier(member)
        asking = asyncio.create_task(tier.get(peer_bench.ask(tokens, 7), deadline_s=0.3))
        await asyncio.sleep(0.05)
        assert peers.tier(member) is tier
        clock.now = 1.0
        assert peers.tier(member) is None
        assert "longer" in peers.states()["a"]
        assert await asking == [Failed("deadline")]
        assert peers.tier(member) is None, "one such failure is enough"
        gate.set()
        clock.now = 2.5
        assert await peers.tier(member).get(peer_bench.ask(tokens, 7), deadline_s=5) == [Miss()]
        assert peers.states()["a"] == ""
        await peers.close()
