"""What the cache costs when it never helps: prompts without any reuse, connector on against `none`, same model."""

import statistics
from contextlib import ExitStack

import numpy as np

from ._common import Engine, demo_model, sidecar

PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 4, 256, 16
REPEATS = 11


def run() -> list[dict[str, object]]:
    """The engines take turns, in an order that rotates, so that drift of the machine's speed hits all of them alike."""
    loaded = demo_model()
    random = np.random.default_rng(1)
    seconds: dict[str, list[float]] = {"none": [], "sidecar": [], "embedded": []}
    with ExitStack() as stack:
        address = stack.enter_context(sidecar("1GiB"))
        engines = {
            kind: stack.enter_context(Engine(loaded, kind, address if kind == "sidecar" else "")) for kind in seconds
        }
        for repeat in range(-1, REPEATS):
            for turn in range(len(engines)):
                kind = list(engines)[(repeat + turn) % len(engines)]
                prompts = random.integers(100, 40_000, (PROMPTS, PROMPT_TOKENS)).tolist()
                _, elapsed, ends = engines[kind].run(prompts, OUTPUT_TOKENS)
                engines[kind].settle()
                if any(end.receipt is None or end.receipt.cached_tokens for end in ends):
                    raise RuntimeError("a prompt was reused; this benchmark is about those that are not")
                if repeat >= 0:
                    seconds[kind].append(elapsed)
    of = f"throughput with connector none, {PROMPTS} prompts of {PROMPT_TOKENS} + {OUTPUT_TOKENS} tokens, by pairs"
    return [
        {"metric": metric, "value": _ratio(seconds["none"], seconds[kind]), "unit": "ratio", "of": of}
        for metric, kind in (("engine.no_reuse_ratio", "sidecar"), ("engine.no_reuse_embedded_ratio", "embedded"))
    ]


def _ratio(plain: list[float], cached: list[float]) -> float:
    """Median over the rounds of the throughput ratio."""
    return statistics.median(a / b for a, b in zip(plain, cached, strict=True))
