"""Tally: everything that is counted and measured of one phase, in fixed memory however many requests there are."""

import random
from collections import Counter
from dataclasses import dataclass, field

from .outcome import Outcome, Status, Usage
from .quantiles import Quantiles
from .slo import Slo
from .timeline import Timeline

KEPT_SAMPLES = 5_000  # requests that are told one by one, a random choice of all
MAX_NAMES = 50  # different errors, reasons, kinds: what comes later is counted together
OTHER = "other"
HIT_SHARE = 0.5  # of the prompt: what makes a request a hit


@dataclass(slots=True)
class Latencies:
    """ttft_s, e2e_s: from sending; due_*: from when the request was due, which counts the time that it waited for us.
    itl_s: each time between two contents; tpot_s: a request's mean time between tokens. late_s: due to sent."""

    ttft_s: Quantiles = field(default_factory=Quantiles)
    due_ttft_s: Quantiles = field(default_factory=Quantiles)
    hit_ttft_s: Quantiles = field(default_factory=Quantiles)
    miss_ttft_s: Quantiles = field(default_factory=Quantiles)
    itl_s: Quantiles = field(default_factory=Quantiles)
    tpot_s: Quantiles = field(default_factory=Quantiles)
    e2e_s: Quantiles = field(default_factory=Quantiles)
    due_e2e_s: Quantiles = field(default_factory=Quantiles)
    late_s: Quantiles = field(default_factory=Quantiles)


@dataclass(slots=True)
class Tokens:
    """Of requests that ended well. told: how many of these said how many tokens they had; cached, and receipts: how
    many of them said that. unequal: receipts whose tiers do not sum to the prompt."""

    told: int = 0
    prompt: int = 0
    output: int = 0
    cached_told: int = 0
    cached: int = 0
    cached_of: int = 0  # prompt tokens of those that said how many were cached
    receipts: int = 0
    unequal: int = 0
    tiers: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])
    saved_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One request for the scatter plot and the JSON. Seconds; at_s: due, from the phase's start."""

    at_s: float
    kind: str
    status: str
    ttft_s: float | None
    due_ttft_s: float | None
    e2e_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None


class Tally:
    """rng: chooses the samples that are kept. start_s: of the phase, on the clock of the outcomes."""

    def __init__(self, slo: Slo, rng: random.Random, start_s: float) -> None:
        self.slo = slo
        self.start_s = start_s
        self.end_s = start_s
        self.due_until_s = start_s
        self.statuses: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.kinds: dict[str, Quantiles] = {}
        self.latencies = Latencies()
        self.tokens = Tokens()
        self.timeline = Timeline()
        self.samples: list[Sample] = []
        self.good = 0
        self.good_output_tokens = 0
        self.unsent = 0  # due, and never sent: no room in time
        self.sent = 0
        self._rng = rng

    @property
    def seconds(self) -> float:
        """From the start to the end of the last request."""
        return self.end_s - self.start_s

    @property
    def ok(self) -> int:
        return self.statuses[Status.OK]

    @property
    def asked(self) -> int:
        """Requests that had a fair chance: all that were due, less those that we stopped ourselves."""
        return self.sent + self.unsent - self.statuses[Status.CUT]

    def starts(self, due_s: float, sent_s: float) -> None:
        """A request is being sent."""
        self.sent += 1
        self.due_until_s = max(self.due_until_s, due_s)
        self.latencies.late_s.add(max(0.0, sent_s - due_s))
        self.timeline.add("due", due_s - self.start_s)
        self.timeline.add("sent", sent_s - self.start_s)

    def never_sent(self, due_s: float) -> None:
        self.unsent += 1
        self.due_until_s = max(self.due_until_s, due_s)
        self.timeline.add("due", due_s - self.start_s)

    def ends(self, outcome: Outcome) -> None:
        """A request that started has ended, however."""
        self.end_s = max(self.end_s, outcome.end_s)
        self.statuses[outcome.status] += 1
        self.timeline.add("ended", outcome.end_s - self.start_s)
        self._keep(outcome)
        if outcome.status is Status.CUT:
            return
        broken = self.slo.broken(outcome)
        self.broken.update(broken)
        if not broken:
            self.good += 1
            self.good_output_tokens += outcome.output_tokens
        if outcome.status is Status.OK:
            self._measure(outcome)
            self._count(outcome)
        else:
            _bounded(self.errors, outcome.detail)
            self.timeline.add("failed", outcome.end_s - self.start_s)

    def _measure(self, outcome: Outcome) -> None:
        times = self.latencies
        times.e2e_s.add(outcome.end_s - outcome.sent_s)
        times.due_e2e_s.add(outcome.end_s - outcome.due_s)
        if outcome.first_s is None or (ttft_s := outcome.ttft_s) is None:
            return
        times.ttft_s.add(ttft_s)
        times.due_ttft_s.add(outcome.first_s - outcome.due_s)
        if outcome.kind not in self.kinds and len(self.kinds) >= MAX_NAMES:
            self.kinds.setdefault(OTHER, Quantiles()).add(ttft_s)
        else:
            self.kinds.setdefault(outcome.kind, Quantiles()).add(ttft_s)
        at_s = outcome.first_s
        for gap_s in outcome.gaps_s:
            times.itl_s.add(gap_s)
        if outcome.tpot_s is not None:
            times.tpot_s.add(outcome.tpot_s)
        per_content = outcome.output_tokens / (1 + len(outcome.gaps_s))
        self.timeline.add("output_tokens", at_s - self.start_s, per_content)
        for gap_s in outcome.gaps_s:
            at_s += gap_s
            self.timeline.add("output_tokens", at_s - self.start_s, per_content)
        usage = outcome.usage
        if usage is not None and usage.cached_tokens is not None:
            hit = usage.cached_tokens >= HIT_SHARE * usage.prompt_tokens
            (times.hit_ttft_s if hit else times.miss_ttft_s).add(ttft_s)

    def _count(self, outcome: Outcome) -> None:
        tokens, usage = self.tokens, outcome.usage
        tokens.output += outcome.output_tokens
        if usage is None:
            return
        first_s = outcome.end_s if outcome.first_s is None else outcome.first_s
        tokens.told += 1
        tokens.prompt += usage.prompt_tokens
        self.timeline.add("prompt_tokens", first_s - self.start_s, usage.prompt_tokens)
        if usage.cached_tokens is not None:
            tokens.cached_told += 1
            tokens.cached += usage.cached_tokens
            tokens.cached_of += usage.prompt_tokens
            self.timeline.add("cached_tokens", first_s - self.start_s, usage.cached_tokens)
        if usage.tiers:
            self._receipt(usage)

    def _receipt(self, usage: Usage) -> None:
        tokens = self.tokens
        tokens.receipts += 1
        tokens.unequal += sum(usage.tiers.values()) != usage.prompt_tokens
        for tier, count in usage.tiers.items():
            _bounded(tokens.tiers, tier, count)
        if usage.miss_reason:
            _bounded(tokens.reasons, usage.miss_reason)
        tokens.saved_s += usage.saved_s or 0.0

    def _keep(self, outcome: Outcome) -> None:
        """Each request has the same chance to be among the samples."""
        if len(self.samples) < KEPT_SAMPLES:
            self.samples.append(_sample(outcome, self.start_s))
        elif (at := self._rng.randrange(self.statuses.total())) < KEPT_SAMPLES:
            self.samples[at] = _sample(outcome, self.start_s)


def _bounded(counts: Counter[str], name: str, count: int = 1) -> None:
    counts[name if name in counts or len(counts) < MAX_NAMES else OTHER] += count


def _sample(outcome: Outcome, start_s: float) -> Sample:
    usage = outcome.usage
    return Sample(
        outcome.due_s - start_s,
        outcome.kind,
        str(outcome.status),
        outcome.ttft_s,
        None if outcome.first_s is None else outcome.first_s - outcome.due_s,
        outcome.end_s - outcome.sent_s,
        usage.prompt_tokens if usage else 0,
        outcome.output_tokens,
        usage.cached_tokens if usage else None,
    )
