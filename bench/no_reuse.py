"""What the cache costs when it never helps: prompts without any reuse, connector on against `none`, same model.

Two engines without a connector take part: the ratio between these says what the machine's noise alone makes of equal
work, and so how far the other ratios can be trusted. Noise only ever adds time, so an engine's time is the lower
quartile of its rounds; and since where an engine's memory happens to lie makes a few percent for as long as it lives,
engines are made anew for each of several sets. The processor time of this process is told beside it: it is what a busy
machine's throughput is made of, and varies less than the clock does. What the sidecar's own process takes is not in it.
"""

import gc
import statistics
import time
from contextlib import ExitStack

import numpy as np
from kvterrace.engine.model import LoadedModel

from ._common import Engine, demo_model, sidecar

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 1, 256, 16
SETS, ROUNDS = 6, 8
POOL_BYTES = 256 << 20
KINDS = {"plain": "none", "again": "none", "sidecar": "sidecar", "embedded": "embedded"}
METRICS = {
    "engine.no_reuse_ratio": "sidecar",
    "engine.no_reuse_embedded_ratio": "embedded",
    "engine.no_reuse_noise_ratio": "again",
}


def run() -> list[dict[str, object]]:
    """The engines take turns, in an order that rotates. About ten minutes."""
    loaded = demo_model()
    random = np.random.default_rng(1)
    sets = [_set(loaded, random, number) for number in range(SETS)]
    rows: list[dict[str, object]] = []
    for unit in (0, 1):
        for metric, name in METRICS.items():
            ratios = [times["plain"][unit] / times[name][unit] for times in sets]
            rows.append(_result(metric.replace("_ratio", "_cpu_ratio") if unit else metric, ratios))
    return rows


def _set(loaded: LoadedModel, random: np.random.Generator, number: int) -> dict[str, tuple[float, float]]:
    """Seconds of a round by the clock and of the processor, the lower quartile of each engine's."""
    names = list(KINDS)
    order = names[number % len(names) :] + names[: number % len(names)]
    seconds: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
    with ExitStack() as stack:
        address = stack.enter_context(sidecar("1GiB"))
        engines = {
            name: stack.enter_context(
                Engine(loaded, KINDS[name], address if KINDS[name] == "sidecar" else "", kv_pool_bytes=POOL_BYTES)
            )
            for name in order
        }
        for turn in range(-1, ROUNDS):
            for place in range(len(order)):
                name = order[(turn + place) % len(order)]
                prompts = random.integers(100, 40_000, (PROMPTS, PROMPT_TOKENS)).tolist()
                began = time.process_time()
                _, elapsed, ends = engines[name].run(prompts, OUTPUT_TOKENS)
                engines[name].settle()
                worked = time.process_time() - began
                if any(end.receipt is None or end.receipt.cached_tokens for end in ends):
                    raise RuntimeError("a prompt was reused; this benchmark is about those that are not")
                if turn >= 0:
                    seconds[name][0].append(elapsed)
                    seconds[name][1].append(worked)
    del engines
    gc.collect()  # their pools are large
    quartile = {name: [statistics.quantiles(values, n=4)[0] for values in both] for name, both in seconds.items()}
    return {name: (clock, processor) for name, (clock, processor) in quartile.items()}


def _result(metric: str, ratios: list[float]) -> dict[str, object]:
    """Median over the sets of the throughput ratio, and its standard error by their spread."""
    error = 1.25 * statistics.stdev(ratios) / len(ratios) ** 0.5
    of = (
        f"throughput with connector none, {PROMPTS} prompt of {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens, "
        f"{SETS} sets of {ROUNDS} rounds, standard error {error:.3f}"
    )
    return {"metric": metric, "value": statistics.median(ratios), "unit": "ratio", "of": of}
