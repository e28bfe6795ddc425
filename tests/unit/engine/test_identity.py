"""The same tokens come out, whatever path the KV took."""

import pytest

pytestmark = pytest.mark.unit


@pytest.fixture
def expected(rig, prompt):
    """Greedy outputs with nothing shared and everything computed in one piece."""

    def compute(tokens, **params):
        return rig(prefix_cache=False, max_step_tokens=512).one(tokens, **params).tokens[0]

    return compute


@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 31, 32, 33])
def test_hbm_hit_gives_the_same_tokens_at_every_block_border(rig, prompt, expected, length):
    tokens = prompt(1, length)
    engine = rig()
    cold, warm = engine.one(tokens), engine.one(tokens)
    assert cold.tokens[0] == warm.tokens[0] == expected(tokens)
    assert warm.receipt.tokens["hbm"] == (length - 1) // 4 * 4
    engine.all_free()


@pytest.mark.parametrize("length", [1, 3, 4, 5, 15, 16, 17, 31, 32, 33])
def test_loaded_blocks_give_the_same_tokens_at_every_block_border(rig, store, prompt, expected, length):
    tokens, connector = prompt(2, length), store()
    engine = rig(connector=connector)
    engine.one(tokens)
    engine.core.clear_hbm()
    again = engine.one(tokens)
    assert again.tokens[0] == expected(tokens)
    assert again.receipt.tokens["dram"] == (length - 1) // 4 * 4
    assert sum(again.receipt.tokens.values()) == again.receipt.prompt_tokens == length
    engine.all_free()


@pytest.mark.parametrize("budget", [8, 9, 13, 16])
def test_chunked_prefill_gives_the_same_tokens(rig, prompt, expected, budget):
    tokens = prompt(3, 61)
    engine = rig(max_step_tokens=budget)
    assert engine.one(tokens).tokens[0] == expected(tokens)
    assert max(sum(count for _, _, count in step) for step in engine.model.chunks) <= budget


def test_concurrent_requests_do_not_disturb_each_other(rig, prompt, expected):
    shared = prompt(4, 20)
    prompts = [shared + prompt(seed, 3 + seed) for seed in range(8)]
    engine = rig()
    seen = [engine.submit(tokens) for tokens in prompts]
    engine.run()
    assert [s.tokens[0] for s in seen] == [expected(tokens) for tokens in prompts]


def test_requests_with_one_prefix_in_one_step_end_up_on_one_copy(rig, prompt, expected):
    tokens = prompt(5, 9)
    engine = rig()
    seen = [engine.submit([*tokens, last]) for last in (1, 2, 3)]  # together in the first step: each computes its own
    engine.step()
    assert len(engine.model.chunks[0]) == 3
    assert engine.pool.pinned == 2  # two full blocks, once
    engine.run()
    assert [s.tokens[0] for s in seen] == [expected([*tokens, last]) for last in (1, 2, 3)]


def test_preemption_gives_the_same_tokens(rig, prompt, expected):
    prompts = [prompt(seed, 10) for seed in range(4)]
    engine = rig(pages=14)
    seen = [engine.submit(tokens, max_tokens=20) for tokens in prompts]
    engine.run()
    assert engine.core.stats.preemptions > 0
    assert [s.tokens[0] for s in seen] == [expected(tokens, max_tokens=20) for tokens in prompts]
    assert sum(engine.core.stats.prompt_tokens.values()) == 40  # computed again, but credited once
    assert all(sum(s.receipt.tokens.values()) == 10 for s in seen)
    engine.all_free()


def test_without_the_prefix_cache_nothing_is_shared(rig, prompt, expected):
    tokens = prompt(6, 24)
    engine = rig(prefix_cache=False)
    first, second = engine.one(tokens), engine.one(tokens, n=2)
    assert first.tokens[0] == second.tokens[0] == second.tokens[1] == expected(tokens)
    assert second.receipt.tokens["computed"] == 24
    assert second.receipt.miss_reason == "cache_off"
    assert engine.pool.free_pages == engine.pool.num_pages


def test_generated_blocks_are_reused_by_the_next_turn(rig, prompt, expected):
    tokens = prompt(7, 10)
    engine = rig()
    answer = engine.one(tokens, max_tokens=12).tokens[0]
    turn = [*tokens, *answer, *prompt(8, 5)]
    second = engine.one(turn)
    assert second.tokens[0] == expected(turn)
    assert second.receipt.tokens["hbm"] == 20  # the answer's last token has no KV, so 21 tokens and 5 full blocks


def test_parallel_samples_prefill_once_and_share_full_blocks(rig, prompt, expected):
    tokens = prompt(9, 18)
    engine = rig()
    seen = engine.submit(tokens, n=3)
    engine.step(2)
    assert engine.pool.pinned == 4  # 18 tokens: four full blocks for all three
    engine.run()
    assert [seen.tokens[i] for i in range(3)] == [expected(tokens)] * 3
    assert engine.core.stats.prefill_tokens == 18 + 2 + 2
    assert engine.core.stats.prompt_tokens["computed"] == 18
    assert seen.reasons == ["length"] * 3
    assert [seen.last[i].receipt for i in range(3)] == [seen.receipt] * 3


def test_parallel_samples_go_on_when_the_first_one_fails(rig, prompt, expected):
    tokens = prompt(9, 18)
    engine = rig()
    engine.model.fail_next = True
    seen = engine.submit(tokens, n=3)
    engine.run()
    assert seen.reasons == ["error", "length", "length"]
    assert seen.tokens[1] == expected(tokens)
    engine.all_free()
