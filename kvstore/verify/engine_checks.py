"""Checks of engines: the same greedy answers with and without the cache. Each says what it found; Failed and Skipped
end one. A prompt is random each time, so what is cold is cold."""

import time
from collections.abc import Sequence
from typing import Any

from ..engine_http import EngineError
from .engine_probe import Answer, EngineProbe, same
from .report import Failed, Skipped

SETTLE_S = 10.0  # for an engine to save what it has computed
POLL_S = 0.2
QUESTION = "Repeat: "


def cold_and_warm(probe: EngineProbe, prompt_tokens: int) -> str:
    """Without the cache, for the first time with it, and again."""
    prompt = probe.ids(prompt_tokens, QUESTION)
    reference, how = _reference(probe, prompt)
    first = probe.ask(prompt)
    settle(probe)
    warm = probe.ask(prompt)
    ties = _compare(reference, {"the first answer": first, "the second": warm})
    if warm.cached_tokens == 0:
        raise Failed(f"the same prompt of {warm.prompt_tokens} tokens reused nothing the second time ({warm.miss})")
    return f"equal {how}, cold and warm ({warm.found_in} of {warm.prompt_tokens}){ties}"


def full_hit(probe: EngineProbe, block_tokens: int) -> str:
    """A prompt of whole blocks, all of them known: one token at least is still computed."""
    prompt = probe.ids(4 * block_tokens, QUESTION)
    reference, how = _reference(probe, prompt)
    first = probe.ask(prompt)
    settle(probe)
    warm = probe.ask(prompt)
    ties = _compare(reference, {"the first answer": first, "the second": warm})
    if warm.cached_tokens >= warm.prompt_tokens:
        raise Failed(
            f"{warm.cached_tokens} of {warm.prompt_tokens} prompt tokens are said to be reused: one must be computed"
        )
    return f"equal {how}, {warm.found_in}{ties}"


def partial(probe: EngineProbe, block_tokens: int, shared: int) -> str:
    """A prompt that shares exactly `shared` tokens with a cached one, and then goes on otherwise."""
    head = probe.ids(shared, QUESTION)
    seed, other = _tails(probe, 2 * block_tokens + 3)
    reference = probe.ask(head + other, cached=False)
    probe.ask(head + seed)
    settle(probe)
    answer = probe.ask(head + other)
    ties = _compare(reference, {"the answer after partial reuse": answer})
    full = shared // block_tokens * block_tokens
    if answer.cached_tokens > full:
        raise Failed(f"{answer.cached_tokens} tokens reused of a head of {shared}, whose full blocks have {full}")
    if answer.cached_tokens < full:
        raise Failed(f"{answer.cached_tokens} tokens reused, although full blocks of {full} are shared ({answer.miss})")
    return f"{shared} tokens shared: {answer.cached_tokens} reused, answer equal{ties}"


def across(first: EngineProbe, others: Sequence[EngineProbe], prompt_tokens: int) -> str:
    """What one engine has computed, each other one answers alike; and reuses, where both are on a sidecar."""
    if not others:
        raise Skipped("give --engine several times")
    prompt = first.ids(prompt_tokens, QUESTION)
    reference, _ = _reference(first, prompt)
    first.ask(prompt)
    settle(first)
    said: list[str] = []
    for probe in others:
        if probe.model != first.model:
            raise Skipped(f"{probe} serves {probe.model}, {first} {first.model}")
        answer = probe.ask(prompt)
        ties = _compare(reference, {f"the answer of {probe}": answer})
        sharing = first.connector == probe.connector == "sidecar"
        if sharing and answer.cached_tokens == 0:
            raise Failed(f"{probe} reused nothing of what {first} has saved ({answer.miss}); are they on one sidecar?")
        said.append(f"{probe} equal, {answer.found_in}{ties}")
    return "; ".join(said)


def settle(probe: EngineProbe) -> None:
    """Until what an engine of ours saves in the background is saved, and perhaps forgotten; others get a moment."""
    if not probe.own:
        time.sleep(POLL_S)
        return
    end = time.monotonic() + SETTLE_S
    _wait(probe, end)
    probe.forget()


def _wait(probe: EngineProbe, end: float) -> None:
    while time.monotonic() < end:
        try:
            connector: dict[str, Any] = probe.engine.get("/status.json").get("connector") or {}
        except EngineError:
            return
        if not connector.get("save_bytes_in_flight"):
            return
        time.sleep(POLL_S)


def _reference(probe: EngineProbe, prompt: Sequence[int]) -> tuple[Answer, str]:
    """An answer without the cache; where that cannot be asked for, the first one of a prompt that is new."""
    try:
        return probe.ask(prompt, cached=False), "without the cache"
    except Skipped:
        return probe.ask(prompt), "as a new prompt"


def _tails(probe: EngineProbe, count: int) -> tuple[list[int], list[int]]:
    """Two ends whose first tokens differ."""
    one = probe.ids(count)
    for _ in range(64):
        other = probe.ids(count)
        for at, (left, right) in enumerate(zip(one, other, strict=True)):
            if left != right:
                return one[at:], other[at:]
    raise Skipped("the tokenizer makes the same tokens of different texts")


def _compare(reference: Answer, answers: dict[str, Answer]) -> str:
    """A word on ties. Failed for a difference that is none."""
    ties = 0
    for name, answer in answers.items():
        found = same(reference, answer)
        if found == "tie":
            ties += 1
        elif found:
            raise Failed(f"{name} is another than the one without the cache ({answer.found_in}): {found}")
    return f"; {ties} parted where two tokens were as likely but for rounding" if ties else ""
