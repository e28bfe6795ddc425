"""What insight costs the store's loop: CPU of one prompt of 2,048 tokens, the longest time it holds the loop, and what
the caller of an acquire pays."""

import statistics
import time

import numpy as np
from kvterrace.kvstore.insight import Insight
from kvterrace.kvstore.insight.facts import Asked, SpaceFacts

TOKENS = 2048
SHARED = 1024  # tokens of a head that several prompts have in common
PROMPTS = 600
REPEATS = 5
FACTS = SpaceFacts(b"b" * 32, "bench", "", 16, 720_896, "sha256")


def run() -> list[dict[str, object]]:
    """Medians over REPEATS of means over PROMPTS; of the longest steps the median, too."""
    means, longest, puts = [], [], []
    for seed in range(REPEATS):
        prompts = _prompts(seed)
        insight = Insight()
        began = time.thread_time()
        for prompt in prompts:
            insight.asked(FACTS, prompt, SHARED // 16, "diverged")
        puts.append((time.thread_time() - began) / PROMPTS * 1e6)
        steps = _steps(prompts)
        means.append(sum(steps) / PROMPTS * 1e6)
        longest.append(max(steps) * 1e3)
    of = f"prompts of {TOKENS} tokens in one namespace, half of each shared; median of {REPEATS} x {PROMPTS}"
    rows = (
        ("insight.prompt_us", statistics.median(means), "us", "CPU off the control path, at most 2 % of the loop; "),
        ("insight.longest_step_ms", statistics.median(longest), "ms", "the longest piece of work without a yield; "),
        ("insight.asked_us", statistics.median(puts), "us", "CPU that an acquire pays; "),
    )
    return [{"metric": name, "value": value, "unit": unit, "of": text + of} for name, value, unit, text in rows]


def _steps(prompts: list[bytes]) -> list[float]:
    """Seconds of each step, as the background task would make them, at 50 prompts a second."""
    insight, took = Insight(), list[float]()
    for number, prompt in enumerate(prompts):
        work = insight.look(Asked(FACTS, prompt, SHARED // 16, "diverged", number / 50))
        while True:
            began = time.thread_time()
            more = next(work, "over")
            took.append(time.thread_time() - began)
            if more == "over":
                break
    return took


def _prompts(seed: int) -> list[bytes]:
    rng = np.random.default_rng(seed)
    heads = [rng.integers(0, 30_000, SHARED, dtype=np.int32) for _ in range(8)]
    return [
        np.concatenate([heads[rng.integers(8)], rng.integers(0, 30_000, TOKENS - SHARED, dtype=np.int32)]).tobytes()
        for _ in range(PROMPTS)
    ]
