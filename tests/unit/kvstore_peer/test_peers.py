"""Peers: one tier for each life of each member, closed when that is over."""

import asyncio

import pytest
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.peer.peers import Peers
from kvterrace.kvstore.tiers import Failed, Hit, Miss

pytestmark = pytest.mark.unit


@pytest.fixture
async def peers():
    made = Peers("b", None)
    yield made
    await made.close()


@pytest.fixture
async def server(peer_bench):
    lender = peer_bench.MemoryLender(peer_bench.prompt(1, 4))
    async with peer_bench.Server(peer_bench.PeerServicer(Fetching(lender))) as made:
        made.lender = lender
        yield made


async def test_a_member_has_one_tier_and_it_gets_blocks(peer_bench, peers, server):
    member = peer_bench.Member(server.address)
    tier = peers.tier(member)
    assert peers.tier(peer_bench.Member(server.address)) is tier
    assert tier.name == "peer"
    got = await tier.get(peer_bench.ask(peer_bench.prompt(1, 4)), deadline_s=5)
    assert [type(answer) for answer in got] == [Hit] * 4
    assert peers.counts.fetches == {("grpc", "ok"): 1}
    assert peers.states() == {"a": ""}


async def test_another_epoch_is_another_process(peer_bench, peers, server):
    old = peers.tier(peer_bench.Member(server.address))
    new = peers.tier(peer_bench.Member(server.address, epoch=2))
    assert new is not old
    await asyncio.sleep(0.05)
    wanted = peer_bench.ask(peer_bench.prompt(1, 4))
    assert await old.get(wanted, deadline_s=5) == [Miss()] * 4
    assert all(isinstance(answer, Hit) for answer in await new.get(wanted, deadline_s=5))


async def test_who_left_is_closed_and_what_was_under_way_given_up(peer_bench, peers, server):
    server.lender.gate.clear()
    stays, leaves = peer_bench.Member(server.address, "a"), peer_bench.Member(server.address, "c")
    kept, gone = peers.tier(stays), peers.tier(leaves)
    wanted = peer_bench.ask(peer_bench.prompt(1, 4))
    get = asyncio.create_task(gone.get(wanted, deadline_s=30))
    await peer_bench.until(lambda: server.lender.asked)
    peers.keep([stays])
    assert await get == [Failed("io")] * 4
    assert peers.tier(stays) is kept
    assert set(peers.states()) == {"a"}
    peers.keep([peer_bench.Member(server.address, "a", epoch=9)])
    assert peers.states() == {}


@pytest.mark.parametrize(
    "other", [{"grpc": ""}, {"grpc": "nowhere"}, {"grpc": "h:99999"}, {"grpc": "unix:relative"}, {"wire_version": 0}]
)
async def test_who_cannot_be_asked_has_no_tier(peer_bench, peers, other):
    member = peer_bench.Member(**({"grpc": "127.0.0.1:1"} | other))
    assert peers.tier(member) is None
    assert peers.tier(member) is None
    assert peers.states() == {"a": "cannot be asked"}


async def test_who_failed_is_passed_over_until_it_is_time_to_try_again(peer_bench):
    now, member = 0.0, peer_bench.Member("127.0.0.1:1")
    peers = Peers("b", None, clock=lambda: now)
    wanted = peer_bench.ask(peer_bench.prompt(1, 1))
    tier = peers.tier(member)
    for _ in range(3):
        assert peers.tier(member) is tier
        assert await tier.get(wanted, deadline_s=5) == [Failed("io")]
    assert peers.tier(member) is None
    assert "paused" in peers.states()["a"]
    now = 1.1
    assert peers.tier(member) is tier
    assert peers.tier(peer_bench.Member("127.0.0.1:1", epoch=2)) is not tier  # a new life, a new chance
    await peers.close()


async def test_after_close_nobody_is_asked(peer_bench, peers, server):
    tier = peers.tier(peer_bench.Member(server.address))
    await peers.close()
    await peers.close()
    wanted = peer_bench.ask(peer_bench.prompt(1, 2))
    assert await tier.get(wanted, deadline_s=5) == [Miss()] * 2
    assert peers.tier(peer_bench.Member(server.address)) is None
    assert server.lender.asked == []
