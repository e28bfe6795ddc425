"""What a user of the index relies on: exact lengths, extras, splits, numbers, facts."""

import numpy as np
import pytest
from kvterrace.radix import PrefixIndex, pack_tokens

pytestmark = pytest.mark.unit

SEED = bytes(32)
B = 4


def build(**options) -> PrefixIndex:
    return PrefixIndex(SEED, block_tokens=B, **options)


def run(start: int, blocks: int, more: int = 0) -> bytes:
    return pack_tokens(range(start, start + blocks * B + more))


@pytest.mark.parametrize("blocks", [1, 2, 7])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_only_full_blocks_are_stored_and_matched(blocks: int, more: int) -> None:
    tokens = run(0, blocks, more)
    full = len(tokens) // (4 * B)
    index = build()
    assert len(index.insert(tokens, range(full)).blocks) == full == blocks - (more < 0)
    found = index.match(run(0, 10))
    assert (len(found), found.tokens) == (full, full * B)
    for asked in (-1, 0, 1):  # of a longer known prompt, a question that ends around the same boundary
        longer = build()
        longer.insert(run(0, 10), range(10))
        assert longer.match(run(0, blocks, asked)).tokens == (blocks - (asked < 0)) * B
    with pytest.raises(ValueError, match="do not lie within"):
        index.insert(tokens, range(full + 1))
    index.check()


def test_a_prompt_that_differs_in_one_token_matches_only_whole_blocks_before_it() -> None:
    index, ids = build(), list(range(40))
    index.insert(pack_tokens(ids), range(10))
    for wrong in range(40):
        other = [*ids[:wrong], 999, *ids[wrong + 1 :]]
        assert len(index.match(pack_tokens(other))) == wrong // B


def test_match_changes_nothing() -> None:
    index = build(clock=iter(range(100)).__next__)
    blocks = index.insert(run(0, 3), range(3)).blocks
    before = index.snapshot()
    assert index.match(run(0, 5)).last == blocks[-1]
    assert index.match(run(50, 5)).last == -1
    assert index.match(b"").tokens == 0
    after = index.snapshot()
    assert after.last_use.tolist() == before.last_use.tolist()
    assert after.hits.tolist() == [0, 0, 0]
    assert index.evictable == 3


def test_limit_counts_blocks() -> None:
    index = build()
    index.insert(run(0, 8), range(8))
    for limit in (0, 1, 7, 8, 9):
        assert len(index.match(run(0, 8), limit=limit)) == min(limit, 8)
    assert len(index.match(run(0, 8), limit=-1)) == 0


def test_a_match_is_a_copy_that_later_changes_do_not_reach() -> None:
    index = build()
    index.insert(run(0, 4), range(4))
    found = index.match(run(0, 4))
    before = found.blocks.tolist()
    index.remove(before[1])
    index.insert(run(0, 1) + run(70, 5), range(6))
    assert found.blocks.tolist() == before
    with pytest.raises(ValueError, match="read-only"):
        found.blocks[0] = 9


def test_present_blocks_keep_their_value_and_only_a_gapless_run_is_accepted() -> None:
    index = build()
    index.insert(run(0, 2), [70, 71])
    done = index.insert(run(0, 5), [1, 2, 3, 4], skip=1)
    assert done.existing == 2
    assert index.values(done.blocks).tolist() == [70, 71, 2, 3, 4]
    with pytest.raises(ValueError, match="no parent"):
        index.insert(run(0, 9), [9, 9], skip=7)
    with pytest.raises(ValueError, match="do not lie within"):
        index.insert(run(0, 9), [9], skip=-1)
    assert len(index) == 5
    assert index.insert(run(0, 5), [], skip=5).existing == 5
    index.check()


def test_images_that_share_placeholder_ids_do_not_collide() -> None:
    index, tokens = build(), pack_tokens([7] * (3 * B))
    cat, dog = {1: b"cat" * 11}, {1: b"dog" * 11}
    a = index.insert(tokens, [0, 1, 2], extras=cat).blocks.tolist()
    b = index.insert(tokens, [0, 3, 4], extras=dog).blocks.tolist()
    plain = index.insert(tokens, [0, 5, 6]).blocks.tolist()
    assert a[0] == b[0] == plain[0]
    assert len({*a, *b, *plain}) == 7, "blocks after an image are another prefix too"
    assert index.match(tokens, extras=cat).blocks.tolist() == a
    assert index.match(tokens, extras=dog).blocks.tolist() == b
    assert index.match(tokens).blocks.tolist() == plain
    assert index.match(tokens, extras={1: b"cow"}).blocks.tolist() == a[:1]
    assert index.match(tokens, extras={1: b""}).blocks.tolist() == plain, "empty extras are none"
    assert index.match(tokens, extras={1: cat[1], 2: b"x"}).blocks.tolist() == a[:2]
    assert index.match(tokens, extras={0: b"x"}).blocks.tolist() == []
    assert len({index.key(block) for block in {*a, *b, *plain}}) == 7
    index.check()


def test_extras_that_look_like_tokens_are_still_extras() -> None:
    """Block and extras are never compared as one string of bytes."""
    index = build()
    index.insert(run(0, 1), [0], extras={0: run(4, 1)})
    assert len(index.match(run(0, 2))) == 0
    assert index.match(run(0, 2), extras={0: run(4, 1)}).tokens == B


def test_an_extended_prompt_stays_one_run_and_a_pruned_branch_point_disappears() -> None:
    """Matching costs branch points, not turns: decoding a block at a time must not slow later matches."""
    index = build()
    for blocks in range(1, 50):
        index.insert(run(0, blocks), range(blocks))
    side = [index.insert(run(0, k) + run(900, 1), range(k + 1)).blocks[-1] for k in range(1, 49)]
    assert index.match(run(0, 49)).tokens == 49 * B
    for block in side:
        index.remove(int(block))
    index.check()  # which fails if two runs that could be one are left
    assert index.match(run(0, 49)).tokens == 49 * B


def test_hits_count_once_a_touch() -> None:
    index = build()
    blocks = index.insert(run(0, 3), range(3)).blocks
    index.touch(blocks)
    index.touch([int(blocks[0]), int(blocks[0])])
    assert index.col("hits")[blocks].tolist() == [2, 1, 1]
    with pytest.raises(KeyError, match="not in the index"):
        index.touch([99])


def test_numbers_are_reused_with_fresh_facts() -> None:
    index = build()
    index.column("tier", np.int8, -1)
    with pytest.raises(ValueError, match="tier"):
        index.column("tier", np.int8, 0)
    blocks = index.insert(run(0, 3), range(3)).blocks
    index.touch(blocks)
    index.col("tier")[blocks] = 5
    index.evict(3)
    again = index.insert(run(50, 3), range(3)).blocks
    assert sorted(again.tolist()) == sorted(blocks.tolist())
    assert index.col("tier")[again].tolist() == [-1] * 3
    assert index.col("hits")[again].tolist() == [0] * 3
    with pytest.raises(KeyError):
        index.remove(999)


def test_columns_survive_growth() -> None:
    index = build()
    index.column("mark", np.int64, -1)
    for n in range(40):
        blocks = index.insert(run(1000 * n, 50), range(50)).blocks
        index.col("mark")[blocks] = n
    marks = index.col("mark")
    for n in range(40):
        assert set(marks[index.match(run(1000 * n, 50)).blocks].tolist()) == {n}


def test_removed_blocks_carry_their_facts() -> None:
    now = [10.0]
    index = build(clock=lambda: now[0])
    blocks = index.insert(run(0, 3), [5, 6, 7]).blocks
    now[0] = 11.0
    index.touch(blocks[:2])
    gone = index.remove(int(blocks[1]))
    assert [tuple(fact[1:]) for fact in gone] == [(6, 1, 11.0, 10.0, False), (7, 0, 10.0, 10.0, False)]
    assert len(index) == 1


def test_snapshot_holds_every_block_below_its_parent() -> None:
    index = build()
    index.insert(run(0, 3), [1, 2, 3])
    index.insert(run(0, 1) + run(80, 1), [1, 4], extras={1: b"image"})
    snapshot = index.snapshot()
    row = {block: n for n, block in enumerate(snapshot.blocks.tolist())}
    assert sorted(snapshot.values.tolist()) == [1, 2, 3, 4]
    for n, (block, parent) in enumerate(zip(snapshot.blocks.tolist(), snapshot.parents.tolist(), strict=True)):
        assert parent == -1 or row[parent] < n
        assert snapshot.tokens[n].astype("<i4").tobytes() == index.tokens_of(block)
        assert index.depth(block) == (index.depth(parent) + 1 if parent >= 0 else 0)
    (image,) = snapshot.extras
    assert (snapshot.extras[image], snapshot.values[row[image]]) == (b"image", 4)
    assert build().snapshot().tokens.shape == (0, B)


def test_a_block_of_no_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="block_tokens"):
        PrefixIndex(SEED, block_tokens=0)
