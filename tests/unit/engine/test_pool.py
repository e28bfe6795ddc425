"""Pages are in exactly one place, and misuse is loud."""

import resource

import pytest
import torch
from kvterrace.engine.pool import KVPool, PageTable, make_pool_tensor
from kvterrace.radix import PrefixIndex, pack_tokens

pytestmark = pytest.mark.unit


@pytest.fixture
def pool():
    tensor = make_pool_tensor((8, 1, 1, 2, 4, 2), torch.float32, torch.device("cpu"))
    return KVPool(tensor, PrefixIndex(bytes(32), block_tokens=4))


def cached(pool, tokens):
    """Publishes all full blocks of these tokens and lets go of them."""
    table = PageTable()
    assert pool.grow(table, len(tokens))
    pool.publish(table, pack_tokens(tokens), len(tokens) // 4)
    pool.drop(table)


def test_a_page_cannot_be_freed_twice_or_while_it_is_shared(pool):
    pages = pool.allocate(2)
    pool.free(pages)
    with pytest.raises(AssertionError, match="FREE, not PRIVATE"):
        pool.free(pages[:1])
    table = PageTable()
    pool.grow(table, 4)
    pool.publish(table, pack_tokens([1, 2, 3, 4]), 1)
    with pytest.raises(AssertionError, match="INDEXED, not PRIVATE"):
        pool.free(table.pages)


def test_too_large_an_allocation_evicts_nothing(pool):
    cached(pool, list(range(20)))
    assert pool.allocate(9) is None
    assert pool.known(pack_tokens(list(range(20))), 9) == 5


def test_allocation_takes_free_pages_first_then_evicts_the_oldest_tips(pool):
    cached(pool, list(range(20)))
    assert len(pool.allocate(3)) == 3
    assert pool.known(pack_tokens(list(range(20))), 9) == 5
    assert len(pool.allocate(2)) == 2
    assert pool.known(pack_tokens(list(range(20))), 9) == 3
    pool.index.check()


def test_a_leased_prefix_is_not_evicted(pool):
    cached(pool, list(range(20)))
    table = PageTable()
    assert pool.attach(table, pack_tokens(list(range(12))), 3) == 3
    assert pool.available == 5
    assert pool.allocate(6) is None
    taken = pool.allocate(5)
    assert pool.attach(PageTable(), pack_tokens(list(range(20))), 5) == 3
    assert not set(taken) & set(table.pages)


def test_the_second_copy_of_a_block_is_freed_and_the_first_one_shared(pool):
    first, second = PageTable(), PageTable()
    tokens = pack_tokens([1, 2, 3, 4, 5, 6, 7, 8, 9])
    for table in (first, second):
        pool.grow(table, 9)
    pool.publish(first, tokens, 2)
    own = list(second.pages)
    pool.publish(second, tokens, 2)
    assert second.pages == [*first.pages[:2], own[2]]
    pool.check([first, second], [], [])
    pool.drop(first)
    pool.drop(second)
    pool.check([], [], [])
    assert pool.available == 8


def test_check_notices_a_lost_page_and_a_lost_lease(pool):
    table = PageTable()
    pool.grow(table, 8)
    with pytest.raises(AssertionError, match="a page is lost"):
        pool.check([], [], [])
    pool.publish(table, pack_tokens(list(range(8))), 2)
    with pytest.raises(AssertionError, match="a lease is lost"):
        pool.check([], [], [])


def test_memory_is_paid_for_at_the_start():
    tensor = make_pool_tensor((1024, 4, 4, 2, 16, 32), torch.float32, torch.device("cpu"))  # 64 MiB
    paid = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensor[:, 0, 0, 0, 0, 0] = 1.0  # every page is written, so a lazy mapping would fault here
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - paid < 200
