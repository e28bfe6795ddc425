"""Whatever happens to requests, the numbers add up: tiers to prompt tokens, receipts to counters, ring to store."""

import random
from collections import Counter

import pytest

pytestmark = pytest.mark.unit

SEEDS = range(12)


class Mix:
    """Random requests over a few shared prefixes, with cancellations, failures, lost and short loads, clears."""

    def __init__(self, seed, rig, store, prompt):
        self.rng = random.Random(seed)
        self.connector = store()
        self.engine = rig(
            connector=self.connector,
            pages=self.rng.choice([24, 40, 120]),
            max_step_tokens=self.rng.choice([8, 32]),
            max_queue_wait_s=60.0,
            slo_ttft_s=0.3,
        )
        self.engine.model.token_s = 0.01
        self.heads = [prompt(100 + number, 40) for number in range(3)]
        self.prompt, self.seen = prompt, {}

    def play(self, turns=60):
        for turn in range(turns):
            self.rng.choice([self.submit, self.submit, self.step, self.step, self.step, self.disturb])(turn)
        self.connector.release()
        self.engine.run()

    def submit(self, turn):
        rng, head = self.rng, self.rng.choice(self.heads)
        tokens = head[: rng.randrange(1, 40)] + self.prompt(turn, rng.randrange(0, 12))
        name = f"r{turn}"
        options = {"n": rng.choice([1, 1, 1, 3]), "max_tokens": rng.randrange(1, 12), "cache": rng.random() > 0.1}
        self.seen[name] = self.engine.submit(
            tokens, name=name, priority=rng.choice(["interactive", "batch"]), **options
        )

    def step(self, _):
        self.engine.step(self.rng.randrange(1, 4))

    def disturb(self, turn):
        rng, connector = self.rng, self.connector
        match rng.randrange(8):
            case 0:
                self.engine.core.cancel(rng.choice(list(self.seen) or ["nobody"]))
            case 1:
                self.engine.core.clear_hbm()
            case 2:
                connector.ok_blocks = rng.choice([None, 0, 1, 2])
            case 3:
                connector.nvme_from = rng.choice([0, 2, 10**9])
            case 4:
                connector.withheld = set(rng.sample(["offer", "load", "save"], rng.randrange(3)))
            case 5:
                self.engine.model.fail_next = rng.random() < 0.3
            case 6:
                self.engine.clock.now += rng.choice([0.1, 3.0, 40.0])
            case _:
                connector.release()
                connector.reason = rng.choice(["never_seen", "evicted", "disconnected"])


@pytest.mark.parametrize("seed", SEEDS)
def test_tiers_sum_to_the_prompts_served_in_every_place(seed, rig, store, prompt):
    mix = Mix(seed, rig, store, prompt)
    mix.play()
    stats, ring = mix.engine.core.snapshot(), mix.engine.core.receipts
    kept = ring.newest(10**6)
    ran = {name for name, seen in mix.seen.items() if seen.receipt is not None}
    assert sorted(each.request_id for each in kept) == sorted(ran), "one receipt a request that ran"
    assert {each.request_id: each.tokens for each in mix.connector.receipts} == {
        each.request_id: each.tokens for each in kept
    }
    assert len(mix.connector.receipts) == ring.total == len(ran)
    for each in kept:
        assert sum(each.tokens.values()) == each.prompt_tokens
        assert min(each.tokens.values()) >= 0
        assert each.miss is None or 0 <= each.miss.token < each.prompt_tokens
        assert each.miss is not None or each.tokens["computed"] <= 4, "what was computed has a reason"
    totals = Counter[str]()
    for each in kept:
        totals.update(each.tokens)
    assert {tier: count for tier, count in stats.prompt_tokens.items() if count} == +totals
    assert sum(stats.prompt_tokens.values()) == sum(each.prompt_tokens for each in kept)
    assert stats.misses == Counter(each.miss_reason for each in kept if each.miss is not None)
    assert sum(stats.missed_tokens.values()) <= stats.prompt_tokens["computed"]
    firsts = [each for each in kept if each.ttft_s is not None]
    assert stats.ttft_hit.count + stats.ttft_miss.count == len(firsts)
    assert stats.ttft_hit.count == sum(each.cached_tokens >= each.prompt_tokens / 2 for each in firsts)
    judged = sum(stats.slo_requests.values())
    left = sum("cancelled" in seen.reasons for seen in mix.seen.values())
    assert judged == len(mix.seen) - left
    assert sum(stats.finished.values()) == stats.e2e.count
    mix.engine.all_free()


def test_the_mix_meets_what_it_is_about(rig, store, prompt):
    """All tiers, preemptions, failures and several reasons come up in the seeds above."""
    tokens, reasons, finished, preempted = Counter[str](), Counter[str](), Counter[str](), 0
    for seed in SEEDS:
        mix = Mix(seed, rig, store, prompt)
        mix.play()
        stats = mix.engine.core.stats
        tokens.update(stats.prompt_tokens)
        reasons.update(stats.misses)
        finished.update(stats.finished)
        preempted += stats.preemptions
    assert all(tokens[tier] for tier in ("hbm", "dram", "nvme", "computed"))
    assert {"never_seen", "cache_off", "deadline"} <= set(reasons)
    assert {"length", "cancelled", "error"} <= set(finished)
    assert preempted > 0
