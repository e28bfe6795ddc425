"""Outcome: what became of one request, as its client saw it."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Status(StrEnum):
    """OK: complete. REJECTED: the endpoint is too busy (429, 503). TIMEOUT: given up by us. ERROR: anything else that
    went wrong. CUT: under way when the measuring was stopped."""

    OK = "ok"
    REJECTED = "rejected"
    TIMEOUT = "timeout"
    ERROR = "error"
    CUT = "cut"


def _no_counts() -> dict[str, int]:
    return {}


@dataclass(frozen=True, slots=True)
class Usage:
    """What the endpoint says of a request's tokens. cached: prompt tokens it did not compute; None = it does not say.
    tiers, miss_reason, saved_s: of kvterrace's receipt; tiers is empty without one."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    tiers: Mapping[str, int] = field(default_factory=_no_counts)
    miss_reason: str = ""
    saved_s: float | None = None


@dataclass(slots=True)
class Outcome:
    """Times in seconds of one clock. due_s: when the request was to be sent; sent_s: when it was. first_s: the first
    content, None = there was none. gaps_s: between contents, in order. detail: what went wrong, in few words. text: of
    the answer, kept only while a conversation needs it."""

    kind: str
    due_s: float
    sent_s: float
    end_s: float = 0.0
    first_s: float | None = None
    gaps_s: "array[float]" = field(default_factory=lambda: array("d"))
    status: Status = Status.OK
    detail: str = ""
    usage: Usage | None = None
    text: str = ""

    @property
    def ttft_s(self) -> float | None:
        """From sending to the first content."""
        return None if self.first_s is None else self.first_s - self.sent_s

    @property
    def output_tokens(self) -> int:
        """As told; without that as many as there were contents."""
        if self.usage is not None:
            return self.usage.output_tokens
        return 0 if self.first_s is None else 1 + len(self.gaps_s)

    @property
    def tpot_s(self) -> float | None:
        """Mean time from one output token to the next; None with fewer than two."""
        if self.first_s is None or self.output_tokens < 2:
            return None
        return sum(self.gaps_s) / (self.output_tokens - 1)
