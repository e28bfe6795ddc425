"""Scenarios: who arrives when, and with what. Each yields (seconds from the start, Talk) in order of time.

The shape of prompts: a beginning that requests share with the others of their group, then what only they have. Texts
are made as they are sent, so that a scenario of any length takes no memory.
"""

import random
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from ..sim.trace import Request, Trace
from .arrivals import bursts, poisson
from .talks import Conversation, Message, OneRequest, Prompt, Talk, Turns
from .words import Words

Arrivals = Iterator[tuple[float, Talk]]
FOLLOW_UP_SHARE = 8  # a later message of a conversation is that part of the first one
MIN_FOLLOW_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Shape:
    """prompt_tokens, output_tokens: of one request, about. shared: share of the prompt that a group has in common.
    groups: how many different such beginnings. turns, think_s: of conversations."""

    prompt_tokens: int = 1024
    output_tokens: int = 64
    shared: float = 0.5
    groups: int = 4
    turns: int = 5
    think_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One sort of request of the mixed scenario: its share of all, its lengths as shares of the shape's, and what part
    of its prompt is shared."""

    share: float
    prompt: float
    output: float
    shared: float


MIX: Mapping[str, Kind] = {
    "chat": Kind(share=0.5, prompt=0.25, output=1.0, shared=0.8),
    "document": Kind(share=0.3, prompt=1.0, output=0.5, shared=0.9),
    "one-off": Kind(share=0.2, prompt=0.5, output=2.0, shared=0.0),
}


class MadeUp:
    """Prompts of one phase. phase: part of every text's name, so that no phase finds another's prompts cached."""

    def __init__(self, shape: Shape, words: Words, rate: float, rng: random.Random, phase: str) -> None:
        self._shape, self._words, self._rate, self._rng, self._phase = shape, words, rate, rng, phase
        self._groups = 1 if phase == "alone" else shape.groups  # few requests: of several groups none would be hit

    def steady(self) -> Arrivals:
        return self._single(poisson(self._rate, self._rng), lambda: "steady")

    def burst(self) -> Arrivals:
        return self._single(bursts(self._rate, self._rng), lambda: "burst")

    def mixed(self) -> Arrivals:
        names, weights = list(MIX), [kind.share for kind in MIX.values()]
        return self._single(poisson(self._rate, self._rng), lambda: self._rng.choices(names, weights)[0])

    def conversation(self) -> Arrivals:
        """So many begin that requests come at the rate asked for."""
        shape = self._shape
        own = round(shape.prompt_tokens * (1 - shape.shared))
        turns = Turns(shape.turns, shape.think_s, max(MIN_FOLLOW_UP_TOKENS, own // FOLLOW_UP_SHARE))
        for number, at_s in enumerate(poisson(self._rate / shape.turns, self._rng)):
            name = f"{self._phase}/{number}"
            first = partial(self._prompt, "first turn", name, Kind(1.0, 1.0, 1.0, shape.shared))
            yield at_s, Conversation(first, name, turns, self._words, self._rng)

    def _single(self, times: Iterator[float], kind: Callable[[], str]) -> Arrivals:
        for number, at_s in enumerate(times):
            name = kind()
            form = MIX.get(name, Kind(1.0, 1.0, 1.0, self._shape.shared))
            yield at_s, OneRequest(partial(self._prompt, name, f"{self._phase}/{number}", form))

    def _prompt(self, kind: str, name: str, form: Kind) -> Prompt:
        tokens = max(1, round(self._shape.prompt_tokens * form.prompt))
        head, group = round(tokens * form.shared), self._rng.randrange(self._groups)
        messages: list[Message] = []
        if head:
            messages.append(("system", self._words.shared(f"{self._phase}/{kind}/group {group}", head)))
        messages.append(("user", self._words.text(name, max(1, tokens - head))))
        return Prompt(kind, tuple(messages), max(1, round(self._shape.output_tokens * form.output)))


SCENARIOS: Mapping[str, Callable[[MadeUp], Arrivals]] = {
    "steady": MadeUp.steady,
    "burst": MadeUp.burst,
    "mixed": MadeUp.mixed,
    "conversation": MadeUp.conversation,
}
TRACE = "trace"
NAMES = (*SCENARIOS, TRACE)


@dataclass(frozen=True, slots=True)
class Scaling:
    """speed: 2.0 = twice as fast as recorded. tokens: 0.5 = blocks and answers of half as many tokens. limit: prompt
    and answer must not be longer together; what is longer is left out. 0 = no limit."""

    speed: float = 1.0
    tokens: float = 1.0
    limit: int = 0


class Recorded:
    """Requests of a trace: blocks that were the same have the same text, everything else has its own."""

    def __init__(self, trace: Trace, words: Words, scaling: Scaling, phase: str) -> None:
        self._trace, self._words, self._scaling, self._phase = trace, words, scaling, phase
        self.too_long = 0  # left out so far

    def arrivals(self) -> Arrivals:
        for number, request in enumerate(self._trace.requests):
            prompt_tokens, output_tokens = self._lengths(request)
            if self._scaling.limit and prompt_tokens + output_tokens > self._scaling.limit:
                self.too_long += 1
                continue
            yield request.at_s / self._scaling.speed, OneRequest(partial(self._prompt, number, request))

    def _prompt(self, number: int, request: Request) -> Prompt:
        kind = (self._trace.agents[request.agent] if self._trace.agents else "") or TRACE  # Azure's CSV names none
        return Prompt(kind, (("user", self._text(number, request)),), self._lengths(request)[1])

    def _lengths(self, request: Request) -> tuple[int, int]:
        scale = self._scaling.tokens
        return max(1, round(request.input_tokens * scale)), max(1, round(request.output_tokens * scale))

    def _text(self, number: int, request: Request) -> str:
        whole, count = self._trace.block_tokens, request.count
        block = (whole or request.input_tokens / max(count, 1)) * self._scaling.tokens
        left, _ = self._lengths(request)
        parts: list[str] = []
        for each in array("i", request.blocks):
            if left <= 0:
                break
            tokens = min(max(1, round(block)), left)
            parts.append(self._words.shared(f"{self._phase}/block {each}", tokens))
            left -= tokens
        if left > 0:
            parts.append(self._words.text(f"{self._phase}/rest {number}", left))
        return " ".join(parts)
