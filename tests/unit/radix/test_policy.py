"""Eviction order, and that its cost does not depend on how much there is."""

import numpy as np
import pytest
from kvterrace.radix import Adaptive, Lru, PrefixIndex, S3Fifo, pack_tokens

pytestmark = pytest.mark.unit

B = 2


def run(start: int, blocks: int) -> bytes:
    return pack_tokens(range(start, start + blocks * B))


def ask(index: PrefixIndex, tokens: bytes, capacity: int) -> int:
    """One request as an engine makes it: match, touch, make room, insert. Returns blocks found."""
    found = index.match(tokens)
    index.touch(found.blocks)
    if len(found):
        index.lease(found.last)
    total = len(tokens) // (4 * B)
    index.evict(max(0, len(index) + total - len(found) - capacity))
    if len(found):
        index.release(found.last)
    index.insert(tokens, range(total))
    return len(found)


def test_lru_evicts_the_least_recently_used_tip_first() -> None:
    now = iter(range(100))
    index = PrefixIndex(bytes(32), block_tokens=B, clock=lambda: float(next(now)))
    a = index.insert(run(0, 3), range(3)).blocks.tolist()
    b = index.insert(run(100, 2), range(2)).blocks.tolist()
    c = index.insert(run(0, 1) + run(200, 1), range(2)).blocks.tolist()
    index.touch(a)
    assert index.coldest() == 1.0
    order = [fact.block for fact in index.evict(10)]
    assert order == [b[1], b[0], c[1], a[2], a[1], a[0]]


def test_a_run_is_evicted_only_as_far_as_it_is_colder_than_the_rest() -> None:
    index = PrefixIndex(bytes(32), block_tokens=B)
    path = index.insert(run(0, 6), range(6)).blocks.tolist()
    index.insert(run(100, 1), [9])
    index.touch(path[:4])
    assert [fact.value for fact in index.evict(4)] == [5, 4, 9, 3]


@pytest.mark.parametrize("policy", [Lru, S3Fifo, Adaptive])
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_evicting_in_batches_is_evicting_one_by_one(policy, batch: int) -> None:
    def filled() -> PrefixIndex:
        rng = np.random.default_rng(3)
        index = PrefixIndex(bytes(32), block_tokens=B, policy=policy())
        for _ in range(40):
            tokens = run(1000 * int(rng.integers(5)), int(rng.integers(1, 30)))
            tokens += run(int(rng.integers(9)) * 100_000, int(rng.integers(0, 30)))
            found = index.match(tokens)
            index.touch(found.blocks)
            index.insert(tokens, range(len(tokens) // (4 * B)))
        return index

    one, many = filled(), filled()
    expected = [one.evict(1)[0].block for _ in range(len(one))]
    got: list[int] = []
    while batch_blocks := many.evict(batch):
        got += [fact.block for fact in batch_blocks]
    many.check()
    assert got == expected


def test_s3fifo_keeps_what_is_reused_through_a_scan_that_empties_lru() -> None:
    def hits_after_scan(policy) -> int:
        index = PrefixIndex(bytes(32), block_tokens=B, policy=policy)
        for _ in range(4):
            for head in range(8):
                ask(index, run(1000 * head, 8), capacity=100)
        for scan in range(40):
            ask(index, run(100_000 + 1000 * scan, 8), capacity=100)
        index.check()
        return sum(ask(index, run(1000 * head, 8), capacity=100) for head in range(8))

    assert hits_after_scan(Lru()) == 0
    assert hits_after_scan(S3Fifo()) == 64


def test_s3fifo_sends_a_block_that_comes_back_straight_to_main() -> None:
    """A ghost is known by its whole path: the same tokens behind another head are no return."""
    index = PrefixIndex(bytes(32), block_tokens=B, policy=S3Fifo())
    for n in range(15):
        ask(index, run(1000 * n, 4), capacity=40)
    assert ask(index, run(0, 4), capacity=40) == 0, "it had left"
    assert ask(index, run(77, 1) + run(1002, 3), capacity=40) == 0  # looks like a ghost, behind another head
    for n in range(20):
        ask(index, run(500_000 + 1000 * n, 4), capacity=40)
    assert len(index.match(run(0, 4))) == 4, "a block that came back was scanned away"
    assert len(index.match(run(77, 1) + run(1002, 3))) == 0


def test_s3fifo_forgets_ghosts_that_left_long_ago() -> None:
    index = PrefixIndex(bytes(32), block_tokens=B, policy=S3Fifo())
    for n in range(200):
        ask(index, run(1000 * n, 4), capacity=40)
    ask(index, run(0, 4), capacity=40)
    for n in range(20):
        ask(index, run(500_000 + 1000 * n, 4), capacity=40)
    assert len(index.match(run(0, 4))) == 0


def test_s3fifo_evicts_even_if_everything_is_hot() -> None:
    index = PrefixIndex(bytes(32), block_tokens=B, policy=S3Fifo())
    for n in range(600):
        blocks = index.insert(run(1000 * n, 1), [n]).blocks
        for _ in range(5):
            index.touch(blocks)
    assert len(index.evict(10)) == 10
    assert len(index.evict(1000)) == 590
    index.check()


@pytest.mark.parametrize("policy", [Lru, S3Fifo, Adaptive])
def test_leases_taken_and_given_back_for_ever_do_not_grow_the_queue(policy) -> None:
    """Every entry an eviction queue holds is for a leaf that exists, or swept out before they are the majority."""
    policy = policy()
    index = PrefixIndex(bytes(32), block_tokens=B, policy=policy)
    heaps = [policy._heap] if isinstance(policy, Lru) else policy._heaps
    for n in range(1500):
        blocks = index.insert(run(0, 4) + run(1000 * n, 2), range(6)).blocks.tolist()
        index.touch(blocks)
        index.lease(blocks[-1])
        index.coldest()
        index.release(blocks[-1])
        index.evict(len(index) - 30)
    index.check()
    assert sum(len(heap) for heap in heaps) < 500


@pytest.mark.parametrize("policy", [Lru, S3Fifo, Adaptive])
def test_a_policy_serves_one_index(policy) -> None:
    policy = policy()
    PrefixIndex(bytes(32), policy=policy)
    with pytest.raises(ValueError, match="one index"):
        PrefixIndex(bytes(32), policy=policy)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="small_share"):
        S3Fifo(share)
