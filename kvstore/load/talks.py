"""Talk: what one user does: one request, or several of which each has those before it, and the answers, in it."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from .words import Words

Message = tuple[str, str]  # role, text


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request. kind: what sort of request it is, for the report. messages: of a chat, in order; joined where the
    endpoint completes texts."""

    kind: str
    messages: tuple[Message, ...]
    max_tokens: int


class Talk(Protocol):
    """begin() once; then answered() after each answer, until it says None. reads: whether it needs the answers."""

    @property
    def reads(self) -> bool: ...

    def begin(self) -> Prompt: ...

    def answered(self, answer: str) -> tuple[float, Prompt] | None:
        """Seconds until the user has read and written, and what they send then."""
        ...


@dataclass(frozen=True, slots=True)
class OneRequest:
    """A talk of one request. make: builds it; called once, and not for what is never sent."""

    make: Callable[[], Prompt]

    @property
    def reads(self) -> bool:
        return False

    def begin(self) -> Prompt:
        return self.make()

    def answered(self, answer: str) -> tuple[float, Prompt] | None:
        return None


@dataclass(frozen=True, slots=True)
class Turns:
    """How conversations go on: so many requests, the later ones after a pause of think_s on average, each with a
    message of follow_up_tokens more."""

    count: int
    think_s: float
    follow_up_tokens: int


class Conversation:
    """A talk whose requests grow: each repeats all of the former and its answer."""

    def __init__(self, first: Callable[[], Prompt], name: str, turns: Turns, words: Words, rng: random.Random) -> None:
        """first: builds the first request. name: of the texts behind it, unlike any other's."""
        self._first = first
        self._now: Prompt | None = None
        self._name = name
        self._turns = turns
        self._words = words
        self._rng = rng
        self._done = 1

    @property
    def reads(self) -> bool:
        return True

    def begin(self) -> Prompt:
        self._now = self._first()
        return self._now

    def answered(self, answer: str) -> tuple[float, Prompt] | None:
        if self._done >= self._turns.count or self._now is None:
            return None
        self._done += 1
        more = self._words.text(f"{self._name}/turn {self._done}", self._turns.follow_up_tokens)
        messages = (*self._now.messages, ("assistant", answer), ("user", more))
        self._now = Prompt("later turn", messages, self._now.max_tokens)
        return self._rng.expovariate(1 / self._turns.think_s) if self._turns.think_s else 0.0, self._now
