"""What the cache costs when it never helps: prompts without any reuse, connector on against `none`, same model.

Two engines without a connector take part: the ratio between these says what the machine's noise alone makes of equal
work, and so how far the other ratios can be trusted.
"""

import statistics
from contextlib import ExitStack

import numpy as np

from ._common import Engine, demo_model, sidecar

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 1, 256, 16
ROUNDS = 60  # many short ones: what slows the machine for seconds then hits whole rounds, not one engine of a round
KINDS = {"plain": "none", "again": "none", "sidecar": "sidecar", "embedded": "embedded"}
METRICS = {
    "engine.no_reuse_ratio": "sidecar",
    "engine.no_reuse_embedded_ratio": "embedded",
    "engine.no_reuse_noise_ratio": "again",
}


def run() -> list[dict[str, object]]:
    """The engines take turns, in an order that rotates."""
    loaded = demo_model()
    random = np.random.default_rng(1)
    seconds: dict[str, list[float]] = {name: [] for name in KINDS}
    with ExitStack() as stack:
        address = stack.enter_context(sidecar("1GiB"))
        engines = {
            name: stack.enter_context(Engine(loaded, kind, address if kind == "sidecar" else ""))
            for name, kind in KINDS.items()
        }
        for number in range(-1, ROUNDS):
            for turn in range(len(engines)):
                name = list(engines)[(number + turn) % len(engines)]
                prompts = random.integers(100, 40_000, (PROMPTS, PROMPT_TOKENS)).tolist()
                _, elapsed, ends = engines[name].run(prompts, OUTPUT_TOKENS)
                engines[name].settle()
                if any(end.receipt is None or end.receipt.cached_tokens for end in ends):
                    raise RuntimeError("a prompt was reused; this benchmark is about those that are not")
                if number >= 0:
                    seconds[name].append(elapsed)
    return [_result(metric, seconds["plain"], seconds[name]) for metric, name in METRICS.items()]


def _result(metric: str, plain: list[float], other: list[float]) -> dict[str, object]:
    """Median over the rounds of the throughput ratio, with its standard error by the spread of the middle half."""
    ratios = [a / b for a, b in zip(plain, other, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    error = 1.25 * (high - low) / 1.35 / len(ratios) ** 0.5
    of = (
        f"throughput with connector none, {PROMPTS} prompt of {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens, "
        f"{ROUNDS} rounds, standard error {error:.3f}"
    )
    return {"metric": metric, "value": statistics.median(ratios), "unit": "ratio", "of": of}
