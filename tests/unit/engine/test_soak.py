"""Random requests, cancellations, slow, failing and silent transfers on a small pool, recounted each step."""

import random

import pytest

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_pages_add_up_and_tokens_are_right(rig, store, prompt, seed):
    rng = random.Random(seed)
    connector = store()
    prompts = [prompt(rng.randrange(4), 8 + 4 * (i % 3)) + prompt(i + 50, rng.randrange(1, 20)) for i in range(10)]
    plain = rig(prefix_cache=False)
    expected = [plain.one(tokens, max_tokens=10).tokens[0] for tokens in prompts]
    engine = rig(
        pages=24, connector=connector, max_running=4, kv_fetch_ahead=3, kv_prefetch_ahead=2, max_queue_wait_s=200.0
    )
    alive, every = set(), []
    for turn in range(260):
        if rng.random() < 0.3 and len(alive) < 8:
            which = rng.randrange(len(prompts))
            priority = rng.choice(["interactive", "interactive", "batch"])
            name = f"t{turn}"
            seen = engine.submit(
                prompts[which], name=name, priority=priority, max_tokens=10, n=rng.choice([1, 1, 1, 3])
            )
            alive.add(name)
            every.append((which, seen))
        if alive and rng.random() < 0.05:
            engine.core.cancel(rng.choice(sorted(alive)))
        connector.withheld = {kind for kind in ("offer", "load", "save") if rng.random() < 0.4}
        connector.ok_blocks = rng.choice([None, None, 0, 1, 2])
        connector.max_prefetches = rng.choice([0, 1, 99])
        engine.model.fail_next = rng.random() < 0.01
        if rng.random() < 0.03:
            engine.core.clear_hbm()
        engine.clock.now += rng.choice([0.01, 0.2, 1.0])
        engine.step()
        alive &= set(engine.core._groups)
    engine.model.fail_next = False
    connector.release()
    engine.run()
    engine.step(2)
    engine.all_free()
    finished = 0
    for which, seen in every:
        for index, output in seen.last.items():
            tokens = seen.tokens[index]
            assert tokens == expected[which][: len(tokens)], "wrong tokens"
            finished += output.finish_reason == "length"
            assert output.error in {"", "RuntimeError: out of memory"}
    assert finished > 20
    stats = engine.core.stats
    assert sum(stats.prompt_tokens.values()) == sum(s.receipt.prompt_tokens for _, s in every if s.receipt)
    assert not connector._cycles
    assert not connector.prefetches
    assert connector.count("prefetch") > 0
