"""What an operator clears is gone in every tier, also after a kill; what is kept longer is kept in every tier."""

import asyncio

import pytest
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.errors import SessionRefused
from kvterrace.kvstore.keeping import Extent, NotOne, Selection
from kvterrace.kvstore.service.keeping import BadRequest, clear, retain
from kvterrace.kvstore.store import Store
from kvterrace.proto import Retention
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

SLOT, RECORD = 4096, 8192  # what a block takes in DRAM and on the disk


async def key_of(node, tokens: bytes) -> bytes:
    listing = await node.store.prefixes.list()
    found = [each for each in listing.prefixes if node.store.prefixes.merged(each.fingerprint).run_to(tokens)]
    run = node.store.prefixes.merged(found[0].fingerprint).run_to(tokens)
    side, end = node.store.prefixes.merged(found[0].fingerprint).sides[-1], run.ends[-1]
    return side.key(end.block)


async def three_prompts(node):
    """A shared head of 2 blocks with two tails of 3, and another prompt of 4."""
    session = node.open(label="a")
    one, two, other = (node.tokens(*ids) for ids in ((1, 2, 3, 4, 5), (1, 2, 6, 7, 8), (20, 21, 22, 23)))
    for prompt in (one, two, other):
        await node.saved(session, prompt)
    return session, one, two, other


async def test_clearing_a_listed_prefix_takes_it_and_what_hangs_below_but_nothing_shared(node):
    session, one, two, other = await three_prompts(node)
    tail = await key_of(node, one)
    size = 3 * (SLOT + RECORD)
    asked = Selection(key=tail)
    assert await node.store.keeping.clear(asked, dry_run=True) == Extent(3, size, session.fingerprint)
    assert await node.found(session, one) == 5
    assert await node.store.keeping.clear(asked) == Extent(3, size, session.fingerprint)
    assert [await node.found(session, each) for each in (one, two, other)] == [2, 5, 4]
    head = await key_of(node, node.tokens(1, 2))
    assert (await node.store.keeping.clear(Selection(key=head[:4]))).blocks == 5
    assert [await node.found(session, each) for each in (one, two, other)] == [0, 0, 4]


@pytest.mark.parametrize("by", ["key", "tokens"])
async def test_what_was_cleared_by_prefix_does_not_come_back_after_a_kill(node, start_node, tmp_path, by):
    session, one, two, other = await three_prompts(node)
    which = {"key": Selection(key=await key_of(node, one)), "tokens": Selection(session.fingerprint, tokens=one)}[by]
    await node.store.keeping.clear(which)
    again = start_node(await node.killed(tmp_path / "killed"))
    session = again.open(label="a")
    left = 2 if by == "key" else 4
    assert [await again.found(session, each) for each in (one, two, other)] == [left, 5, 4]


async def test_tokens_that_end_within_a_block_mean_every_block_that_begins_so(node):
    session, one, two, other = await three_prompts(node)
    within = node.tokens(1, 2, 3)[:-8]  # two of the third block's four tokens
    assert (await node.store.keeping.clear(Selection(session.fingerprint, tokens=within))).blocks == 3
    assert [await node.found(session, each) for each in (one, two, other)] == [2, 5, 4]
    assert (await node.store.keeping.clear(Selection(session.fingerprint, tokens=node.tokens(1)[:4]))).blocks == 5
    assert [await node.found(session, each) for each in (one, two, other)] == [0, 0, 4]


async def test_what_is_being_written_down_does_not_become_visible(node, start_node, tmp_path):
    session = node.open()
    prompt = node.tokens(*range(40, 60))
    node.save(session, prompt)
    await asyncio.sleep(0)  # the writer has begun
    await node.store.keeping.clear(Selection(session.fingerprint, tokens=prompt[: 4 * 4]))
    assert await node.store.flush(10.0) == 0
    assert await node.found(session, prompt) == 0
    again = start_node(await node.killed(tmp_path / "killed"))
    assert await again.found(again.open(), prompt) == 0


async def test_a_block_under_a_lease_stays_readable_until_it_is_released(node):
    session, one, *_ = await three_prompts(node)
    lease = await session.acquire(one, skip=0, deadline_s=0)
    await node.store.keeping.clear(Selection(session.fingerprint, tokens=node.tokens(1)))
    ref = lease.slots[0]
    assert session.arena.generation(ref.slot) == ref.generation
    assert await node.found(session, one) == 0
    session.release(lease.lease)
    assert session.arena.generation(ref.slot) != ref.generation


async def test_each_block_counts_once_whatever_tiers_have_it(node):
    session = node.open()
    await node.saved(session, node.tokens(*range(10)))
    node.store._spaces[session.fingerprint].evict(7)  # DRAM has the first 3 of 10 now
    node.save(session, node.tokens(70, 71))
    assert await node.store.flush(10.0) == 0
    whole = await node.store.keeping.clear(Selection(), dry_run=True)
    assert whole == Extent(12, 5 * SLOT + 12 * RECORD)
    assert await node.store.clear() == 12


async def test_retention_by_prefix_reaches_every_tier_and_what_is_below_if_asked(node):
    session, one, *_ = await three_prompts(node)
    head, keeping = await key_of(node, node.tokens(1, 2)), node.store.keeping
    pin = Retention(pinned=True)

    def pinned():
        catalog = node.store._depot.of(session.fingerprint)
        return node.store._spaces[session.fingerprint].index.pinned, catalog.index.pinned

    assert (await keeping.retain(Selection(key=head), pin, ["pinned"], dry_run=True)).blocks == 2
    assert pinned() == (0, 0)
    assert (await keeping.retain(Selection(key=head), pin, ["pinned"])).blocks == 2
    assert pinned() == (2, 2)
    assert (await keeping.retain(Selection(key=head), pin, ["pinned"], below=True)).blocks == 8
    assert pinned() == (8, 8)
    assert (await keeping.retain(Selection(fingerprint=session.fingerprint), pin, ["pinned"])).blocks == 12
    assert pinned() == (12, 12)
    unpin = Retention(pinned=False)
    assert (await keeping.retain(Selection(session.fingerprint, tokens=one), unpin, ["pinned"])).blocks == 5
    assert pinned() == (7, 7)


async def test_a_key_must_mean_one_block(node):
    _, one, *_ = await three_prompts(node)
    with pytest.raises(NotOne, match="no block's key begins with 00000000") as none:
        await node.store.keeping.clear(Selection(key=bytes(4)))
    assert not none.value.several
    key = await key_of(node, one)
    node.save(node.open(b"weights-1"), one)
    assert (await node.store.keeping.clear(Selection(key=key[:4]), dry_run=True)).blocks == 3

    async def same(_, spaces=None):
        return [each for each in await real(key) for _ in range(2)]

    real, node.store.prefixes.find = node.store.prefixes.find, same
    with pytest.raises(NotOne, match="2 blocks' keys begin with") as several:
        await node.store.keeping.clear(Selection(key=key))
    assert several.value.several


@pytest.mark.parametrize(
    ("call", "request_", "words"),
    [
        (clear, pb.ClearRequest(key=b"abc"), "key: must have 4 bytes at least, not 3"),
        (clear, pb.ClearRequest(tokens=b"\0" * 16), "tokens: need the fingerprint"),
        (clear, pb.ClearRequest(fingerprint=b"f" * 31), "fingerprint: must have 32 bytes or none, not 31"),
        (clear, pb.ClearRequest(fingerprint=b"f" * 32, tenant="t"), "tenant: not together with a fingerprint"),
        (clear, pb.ClearRequest(tenant="nobody"), "knows no tenant 'nobody'"),
        (retain, pb.RetainRequest(set=["pinned"]), "fingerprint: say which blocks"),
        (retain, pb.RetainRequest(fingerprint=b"f" * 32, set=["size"]), "set: must name some of"),
        (retain, pb.RetainRequest(key=b"abcd", tokens=b"\0" * 16, set=["pinned"]), "key: not together with tokens"),
        (
            retain,
            pb.RetainRequest(fingerprint=b"f" * 32, set=["priority"], retention=pb.RetentionSpec(priority=101)),
            "priority: must be",
        ),
    ],
)
async def test_a_request_that_makes_no_sense_names_its_field_and_changes_nothing(node, call, request_, words):
    await node.saved(node.open(), node.tokens(1, 2))
    with pytest.raises(BadRequest, match=words):
        await call(node.store, request_)
    assert node.store.stats().tiers[0].blocks == 2


def test_the_default_tenant_is_never_everybody():
    store = Store(Arena.anonymous(4096 * 4))
    with pytest.raises(SessionRefused, match="one by one"):
        asyncio.run(store.clear_tenant(""))
    store.close()
