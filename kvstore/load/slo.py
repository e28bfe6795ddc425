"""Slo: what a request must keep to count as well served. Latencies count from when the request was due."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .outcome import Outcome, Status

LIMITS: Mapping[str, str] = {
    "ttft": "from when it was due to its first content",
    "itl": "mean time between its tokens",
    "gap": "longest time between two of its contents",
    "e2e": "from when it was due to its end",
}


@dataclass(frozen=True, slots=True)
class Slo:
    """limits_s: by name of LIMITS; empty = every request that is complete meets it."""

    limits_s: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> "Slo":
        """Of "ttft=0.5,itl=0.05", in seconds. ValueError says what is wrong."""
        limits: dict[str, float] = {}
        for part in filter(None, (each.strip() for each in text.split(","))):
            name, equals, number = part.partition("=")
            try:
                seconds = float(number)
            except ValueError:
                seconds = 0.0
            if not equals or name not in LIMITS:
                raise ValueError(f"{part!r} is none of {', '.join(f'{each}=SECONDS' for each in LIMITS)}")
            if not 0 < seconds < float("inf"):
                raise ValueError(f"{part!r}: {number!r} is not a number of seconds above 0")
            limits[name] = seconds
        return cls(limits)

    def broken(self, outcome: Outcome) -> list[str]:
        """The limits that it did not keep; all of them when it did not end well. [] = it met the objective."""
        if outcome.status is not Status.OK:
            return list(self.limits_s) or [str(outcome.status)]
        return [name for name, value in _measured(outcome) if value > self.limits_s.get(name, float("inf"))]


def _measured(outcome: Outcome) -> Iterator[tuple[str, float]]:
    # An answer without any content has had no first one: its end is when the user knew.
    first_s = outcome.end_s if outcome.first_s is None else outcome.first_s
    yield "ttft", first_s - outcome.due_s
    yield "itl", outcome.tpot_s or 0.0
    yield "gap", max(outcome.gaps_s, default=0.0)
    yield "e2e", outcome.end_s - outcome.due_s
