"""Where a prompt parts from the known ones: to the token."""

import random

import numpy as np
import pytest
from kvterrace.radix import PrefixIndex, pack_tokens, unpack_tokens
from kvterrace.radix.branch import MOST_CHILDREN, MOST_TOKENS

pytestmark = pytest.mark.unit

B = 4


def make(*prompts: list[int]) -> PrefixIndex:
    index = PrefixIndex(bytes(32), block_tokens=B)
    for prompt in prompts:
        index.insert(pack_tokens(np.array(prompt)), np.zeros(len(prompt) // B))
    return index


def branch(index: PrefixIndex, prompt: list[int]):
    tokens = pack_tokens(np.array(prompt))
    found = index.branch(tokens, index.match(tokens))
    return None if found is None else (found.common, list(unpack_tokens(found.known)))


@pytest.mark.parametrize("at", range(4, 12))
def test_the_first_token_that_differs_is_found_exactly(at: int) -> None:
    known = list(range(12))
    other = [*known[:at], 99, *known[at + 1 :]]
    assert branch(make(known), other) == (at % B, known[at:])


def test_of_several_continuations_the_most_alike_counts() -> None:
    head = [1, 2, 3, 4]
    index = make([*head, 5, 6, 0, 0], [*head, 5, 6, 7, 0, 80, 81, 82, 83], [*head, 9, 9, 9, 9])
    assert branch(index, [*head, 5, 6, 7, 8]) == (3, [0, 80, 81, 82, 83])
    assert branch(index, [*head, 4, 6, 7, 8])[0] == 0


def test_nothing_is_said_of_a_prompt_that_only_goes_on() -> None:
    known = list(range(8))
    assert branch(make(known), [*known, 1, 2, 3, 4]) is None
    assert branch(make(), known) is None


def test_a_block_that_is_not_full_is_no_block() -> None:
    assert branch(make(list(range(8))), [0, 1, 2, 3, 4, 9]) is None


def test_the_known_continuation_is_short_and_goes_on_below() -> None:
    head = list(range(4))
    index = make([*head, *range(100, 108)], [*head, *range(100, 108), *range(200, 280)])
    index.insert(pack_tokens(np.array([*head, *range(100, 108), 7, 7, 7, 7])), np.zeros(4))
    common, known = branch(index, [*head, 100, 0, 0, 0])
    assert (common, known) == (1, [*range(101, 108), 7, 7, 7, 7])
    _, known = branch(index, [*head, *range(100, 108), 200, 0, 0, 0])
    assert known == list(range(201, 201 + MOST_TOKENS))


def test_blocks_with_extras_are_no_continuation_of_plain_tokens() -> None:
    head = [1, 2, 3, 4]
    index = make(head)
    tokens = pack_tokens(np.array([*head, 5, 6, 7, 8]))
    index.insert(tokens, np.zeros(2), extras={1: b"image"})
    assert branch(index, [*head, 5, 6, 7, 8]) is None


def test_at_most_so_many_are_compared_and_these_are_the_newest() -> None:
    head = [1, 2, 3, 4]
    index = make([*head, 5, 6, 7, 0], *([*head, 1000 + each, 0, 0, 0] for each in range(MOST_CHILDREN)))
    assert branch(index, [*head, 5, 6, 7, 8])[0] == 0, "the nearest is too old to be looked at"
    index.insert(pack_tokens(np.array([*head, 5, 6, 1, 0])), np.zeros(2))
    assert branch(index, [*head, 5, 6, 7, 8])[0] == 2


def test_it_is_what_comparing_with_every_prompt_finds() -> None:
    rng = random.Random(5)
    for _ in range(60):
        prompts = [[rng.randrange(3) for _ in range(4 * rng.randrange(1, 5))] for _ in range(rng.randrange(1, 12))]
        index = make(*prompts)
        asked = [rng.randrange(3) for _ in range(16)]
        tokens = pack_tokens(np.array(asked))
        have = index.match(tokens).tokens
        found = index.branch(tokens, index.match(tokens))
        shared = max(
            next((n for n, (a, b) in enumerate(zip(p, asked, strict=False)) if a != b), len(p)) for p in prompts
        )
        goes_on = any(len(p) > have and p[:have] == asked[:have] for p in prompts)
        assert (found is not None) == (goes_on and have < len(asked))
        if found is not None:
            assert have + found.common == shared


def test_whether_so_many_blocks_are_known_is_what_a_match_says() -> None:
    rng = random.Random(6)
    for _ in range(200):
        prompts = [[rng.randrange(2) for _ in range(4 * rng.randrange(1, 5))] for _ in range(rng.randrange(12))]
        index = make(*prompts)
        tokens = pack_tokens(np.array([rng.randrange(2) for _ in range(rng.randrange(18))], dtype=np.int64))
        for blocks in range(6):
            assert index.knows(tokens, blocks) == (len(index.match(tokens)) >= blocks)
        index.check()
