"""Heads that an operator lets tenants share: only listed tokens cross, as copies, from those who may write them."""

import asyncio

import pytest
from kvterrace.kvstore.tenants.heads import Head, HeadList

pytestmark = pytest.mark.unit

B = 4
TOKEN = 4
BOTH = {"a": (None, 0), "b": (None, 0), "c": (None, 0)}


@pytest.fixture
def prompt(bench):
    return bench(8, {}).prompt


@pytest.fixture
def shared(bench, prompt):
    """A store of 128 pages with heads of prompt 1 of these (blocks, extra tokens), written by whom."""

    def make(*lengths, by=("*",), pages=128, **options):
        heads = [Head(prompt(1, *length), frozenset(by)) for length in lengths]
        return bench(pages, BOTH, heads=heads, **options)

    return make


async def settle(b):
    await b.store._sharing.settled()
    b.store.check()


@pytest.mark.parametrize(("extra", "blocks"), [(-1, 4), (0, 5), (1, 5)])
async def test_blocks_wholly_within_a_head_are_shared(shared, extra, blocks):
    b = shared((5, extra))
    ours, theirs = b.open("a"), b.open("b")
    b.save(ours, b.prompt(1, 8))
    await settle(b)
    assert b.has(theirs, b.prompt(1, 8)) == blocks, "and a look-up says so"
    got = await b.read(theirs, b.prompt(1, 8))
    assert (len(got.slots), got.tiers, got.reason) == (blocks, {"dram": blocks * B}, "never_seen")
    await settle(b)
    assert await b.read(theirs, b.prompt(1, 8), deadline_s=0)
    assert b.has(theirs, b.prompt(1, 8)) == blocks


@pytest.mark.parametrize("length", [3 * B - 1, 3 * B, 3 * B + 1])
async def test_prompts_that_end_within_a_head_get_their_full_blocks(shared, length):
    b = shared((5, 0))
    b.save(b.open("a"), b.prompt(1, 5))
    await settle(b)
    got = await b.read(b.open("b"), b.prompt(1, 5)[: length * TOKEN])
    assert (len(got.slots), got.reason) == (length // B, "")


async def test_what_is_not_listed_never_crosses(shared):
    b = shared((3, 0))
    ours, theirs = b.open("a"), b.open("b")
    b.save(ours, b.prompt(1, 6))
    b.save(ours, b.prompt(2, 6))
    await settle(b)
    like = b.prompt(1, 2) + b.prompt(2, 1) + b.prompt(1, 6)[3 * B * TOKEN :]
    assert len((await b.read(theirs, like)).slots) == 2, "the tokens are compared, one by one"
    assert (await b.read(theirs, b.prompt(2, 6))).reason == "never_seen"
    assert len((await b.read(theirs, b.prompt(1, 6))).slots) == 3
    shared_blocks = sum(each.blocks for each in b.store.stats().namespaces if each.tenant == "*")
    assert shared_blocks == 3


async def test_a_head_that_begins_another(shared):
    b = shared((2, 0), (6, 2))
    ours, theirs = b.open("a"), b.open("b")
    b.save(ours, b.prompt(1, 2))
    await settle(b)
    assert len((await b.read(theirs, b.prompt(1, 8))).slots) == 2
    b.save(ours, b.prompt(1, 8))
    await settle(b)
    assert len((await b.read(theirs, b.prompt(1, 8))).slots) == 6


async def test_other_weights_share_nothing(shared):
    b = shared((5, 0))
    b.save(b.open("a"), b.prompt(1, 5))
    await settle(b)
    assert (await b.read(b.open("b", weights=b"weights-1"), b.prompt(1, 5))).reason == "never_seen"


async def test_only_those_named_write_a_head(shared):
    b = shared((5, 0), by=("a",))
    b.save(b.open("b"), b.prompt(1, 5))
    await settle(b)
    assert (await b.read(b.open("c"), b.prompt(1, 5))).reason == "never_seen"
    b.save(b.open("a"), b.prompt(1, 5))
    await settle(b)
    assert len((await b.read(b.open("c"), b.prompt(1, 5))).slots) == 5


async def test_without_time_a_head_is_not_copied_and_the_reason_is_the_deadline(shared):
    b = shared((5, 0))
    b.save(b.open("a"), b.prompt(1, 5))
    await settle(b)
    theirs = b.open("b")
    assert (await b.read(theirs, b.prompt(1, 5), deadline_s=0)).reason == "deadline"
    assert b.pages("b") == 0


async def test_a_head_that_the_engine_has_is_not_copied(shared):
    b = shared((5, 0))
    b.save(b.open("a"), b.prompt(1, 5))
    await settle(b)
    await b.read(b.open("b"), b.prompt(1, 5), skip=5)
    assert b.pages("b") == 0


async def test_copies_count_for_their_tenants_and_leave_like_other_blocks(shared):
    b = shared((5, 0))
    ours, theirs = b.open("a"), b.open("b")
    b.save(ours, b.prompt(1, 5))
    await settle(b)
    await b.read(theirs, b.prompt(1, 5))
    assert (b.pages("a"), b.pages("b"), b.tenants.shared.dram.used // 4096) == (5, 5, 5)
    await b.store.clear(ours.fingerprint)
    assert len((await b.read(theirs, b.prompt(1, 5))).slots) == 5
    b.store.tenancy.limit("b", dram_quota=3 * 4096)
    fresh = b.prompt(7, 3)
    assert b.save(theirs, fresh) == 3
    assert b.pages("b") == 3
    got = await b.read(theirs, b.prompt(1, 5))
    assert (len(got.slots), b.pages("b")) == (3, 3), "a copy makes room among the tenant's own"


async def test_many_requests_at_once_copy_a_block_once(shared):
    b = shared((5, 0))
    b.save(b.open("a"), b.prompt(1, 5))
    await settle(b)
    theirs = b.open("b")
    got = await asyncio.gather(*(theirs.acquire(b.prompt(1, 5), skip=0, deadline_s=5) for _ in range(6)))
    assert [len(each.slots) for each in got] == [5] * 6
    assert b.pages("b") == 5
    for each in got:
        theirs.release(each.lease)


async def test_a_corrupt_shared_block_is_not_served(shared):
    b = shared((5, 0))
    b.save(b.open("a"), b.prompt(1, 5))
    await settle(b)
    space = next(each for each in b.store._spaces.values() if each.tenant is b.tenants.shared)
    slot = space.index.values(space.index.match(b.prompt(1, 5)).blocks)[2]
    space.view.block(int(slot))[7] ^= 1
    got = await b.read(b.open("b"), b.prompt(1, 5))
    assert (len(got.slots), got.reason) == (2, "never_seen")
    assert len(space.index) == 2, "it has left, with what is below it"
    assert b.counters.checksum_failures == 1


async def test_a_session_that_ends_meanwhile_leaves_nothing(shared):
    b = shared((5, 0))
    ours, theirs = b.open("a"), b.open("b")
    b.save(ours, b.prompt(1, 5))
    ours.close()
    asking = asyncio.create_task(theirs.acquire(b.prompt(1, 5), skip=0, deadline_s=5))
    await asyncio.sleep(0)
    theirs.close()
    await asking
    await settle(b)
    await b.store._promoter.settled()
    assert b.store.stats().tiers[0].leased_bytes == 0


async def test_what_is_shared_once_more_after_it_left(shared):
    b = shared((3, 0))
    ours = b.open("a")
    b.save(ours, b.prompt(1, 3))
    await settle(b)
    shared_space = next(each for each in b.store._spaces.values() if each.tenant is b.tenants.shared)
    await b.store.clear(shared_space.fingerprint)
    await b.read(ours, b.prompt(1, 3))
    await settle(b)
    assert len((await b.read(b.open("b"), b.prompt(1, 3))).slots) == 3


def test_heads_are_found_block_by_block(prompt):
    heads = [Head(prompt(1, 2), frozenset("*")), Head(prompt(1, 5, 3), frozenset("*")), Head(prompt(2, 1), frozenset())]
    found = HeadList(heads, B)
    assert found.longest == 5
    for name, blocks, wanted in ((1, 1, 1), (1, 5, 5), (1, 9, 5), (2, 3, 1), (3, 3, 0)):
        assert found.blocks(prompt(name, blocks)) == wanted
    assert HeadList([Head(prompt(1, 0, 3), frozenset("*"))], B).blocks(prompt(1, 4)) == 0
