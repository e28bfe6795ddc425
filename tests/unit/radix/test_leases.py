"""A lease keeps what its holder reads: in the tree against eviction, out of reuse when removed all the same."""

import pytest
from kvterrace.radix import PrefixIndex, S3Fifo, pack_tokens

pytestmark = pytest.mark.unit

B = 2


def run(start: int, blocks: int) -> bytes:
    return pack_tokens(range(start, start + blocks * B))


@pytest.fixture(params=["lru", "s3fifo"])
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    return PrefixIndex(bytes(32), block_tokens=B, policy=S3Fifo() if request.param == "s3fifo" else None)


def test_eviction_never_takes_a_leased_path(index: PrefixIndex) -> None:
    path = index.insert(run(0, 6), range(6)).blocks.tolist()
    index.insert(run(0, 3) + run(90, 2), range(5))
    index.lease(path[3])
    assert index.evictable == 4
    assert index.coldest() is not None
    gone = {fact.block for fact in index.evict(100)}
    assert len(gone) == 4
    assert not gone & set(path[:4])
    assert index.coldest() is None
    assert index.match(run(0, 6)).blocks.tolist() == path[:4]
    index.release(path[3])
    assert index.evictable == 4
    assert [fact.block for fact in index.evict(100)] == path[3::-1]
    index.check()


def test_leases_are_counted_and_one_release_too_many_raises(index: PrefixIndex) -> None:
    (block,) = index.insert(run(0, 1), [0]).blocks.tolist()
    with pytest.raises(ValueError, match="not leased"):
        index.release(block)
    index.lease(block)
    index.lease(block)
    assert index.leases(block) == 2
    index.release(block)
    assert not index.evict(1)
    index.release(block)
    for wrong in (block, 77, -1):
        with pytest.raises(ValueError, match="not leased"):
            index.release(wrong)
    with pytest.raises(KeyError):
        index.lease(77)
    assert len(index.evict(1)) == 1


def test_a_lease_survives_a_split_and_the_merge_after_it(index: PrefixIndex) -> None:
    path = index.insert(run(0, 6), range(6)).blocks.tolist()
    index.lease(path[4])
    index.lease(path[1])
    side = index.insert(run(0, 3) + run(90, 1), range(4)).blocks.tolist()
    index.check()
    assert index.evictable == 2
    index.remove(side[3])
    index.check()
    assert index.evictable == 1
    index.release(path[4])
    assert index.evictable == 4
    index.check()


def test_a_removed_block_in_use_is_not_reused_before_its_last_release(index: PrefixIndex) -> None:
    path = index.insert(run(0, 5), [10, 11, 12, 13, 14]).blocks.tolist()
    index.lease(path[3])
    index.lease(path[3])
    removed = index.remove(path[2])
    assert [(fact.value, fact.orphan) for fact in removed] == [(12, True), (13, True), (14, False)]
    assert index.orphans == 2
    assert index.values([path[2], path[3]]).tolist() == [12, 13], "its holder still finds the payload"
    new = index.insert(run(50, 20), range(20)).blocks.tolist()
    assert not set(new) & {path[2], path[3]}
    with pytest.raises(KeyError):
        index.lease(path[3])
    assert not index.release(path[3])
    freed = index.release(path[3])
    assert sorted(fact.value for fact in freed) == [12, 13]
    assert index.orphans == 0
    with pytest.raises(ValueError, match="not leased"):
        index.release(path[3])
    index.check()


def test_a_lease_whose_end_was_removed_still_pins_the_rest_of_its_path(index: PrefixIndex) -> None:
    """One corrupt block is dropped; another reader of the same prefix is still copying the blocks before it."""
    path = index.insert(run(0, 5), range(5)).blocks.tolist()
    index.lease(path[4])
    index.remove(path[3])
    assert not index.evict(10)
    with pytest.raises(ValueError, match="not leased"):
        index.release(path[2])  # what pins it is not the caller's to give back
    index.remove(path[1])
    assert index.orphans == 4
    assert len(index.evict(10)) == 0
    assert len(index.release(path[4])) == 4
    assert [fact.block for fact in index.evict(10)] == [path[0]]
    index.check()


def test_the_last_reader_of_several_frees_the_shared_part(index: PrefixIndex) -> None:
    path = index.insert(run(0, 2), [0, 1]).blocks.tolist()
    other = index.insert(run(0, 1) + run(90, 1), [0, 2]).blocks.tolist()
    index.lease(path[1])
    index.lease(other[1])
    index.remove(path[0])
    assert [fact.value for fact in index.release(path[1])] == [1]
    assert sorted(fact.value for fact in index.release(other[1])) == [0, 2]
    index.check()
