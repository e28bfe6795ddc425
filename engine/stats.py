"""What the engine counts: cumulative counters, gauges and histograms. Written by the engine thread only; readers get
a copy. Nothing here is a ratio, so that a scraper can form any rate it likes."""

from bisect import bisect_left
from dataclasses import dataclass, field

from .request import TIERS

LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip


@dataclass(slots=True)
class Histogram:
    """Seconds, in Prometheus' shape: counts[i] observations were <= LATENCY_BUCKETS_S[i] and above the bound before
    (not cumulative); the last count is for everything longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def copy(self) -> "Histogram":
        return Histogram(list(self.counts), self.sum_s)


@dataclass(slots=True)
class EngineStats:
    """Counters rise for ever; gauges are of the moment. prompt_tokens sums over its tiers to the prompt tokens of the
    requests that ran. prefill/decode tokens count what the model was fed (recomputation included), and their seconds
    share a mixed step's time by tokens."""

    prompt_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TIERS, 0))
    misses: dict[str, int] = field(default_factory=dict)  # requests
    missed_tokens: dict[str, int] = field(default_factory=dict)  # in full blocks of prompts
    generated_tokens: int = 0
    requests: int = 0
    finished: dict[str, int] = field(default_factory=dict)  # samples by finish_reason
    rejected: int = 0  # QueueFull
    preemptions: int = 0
    steps: int = 0
    step_errors: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    saved_s: float = 0.0  # by requests that the store made faster, as their receipts say
    lost_s: float = 0.0  # by those that it made slower
    slo_requests: dict[str, int] = field(default_factory=dict)  # "met" or "missed"; of none while there is no SLO
    slo_tokens: dict[str, int] = field(default_factory=dict)  # that those requests generated
    saved_blocks: int = 0
    dropped_saves: int = 0  # blocks that were offered to the store and not taken, or not offered: too many in flight
    late_transfers: int = 0  # fetches or loads that the watchdog gave up
    stray_events: int = 0  # connector events nobody waits for (late or duplicate)
    # gauges
    queued: int = 0  # requests that did not run yet
    queued_tokens: int = 0  # of their prompts
    admitted_tokens: int = 0  # prompt and output so far, of running sequences
    capacity_tokens: int = 0  # of the KV pool
    waiting: int = 0  # sequences, preempted ones included
    running: int = 0
    pages: int = 0
    pages_free: int = 0
    pages_cached: int = 0  # in the index and evictable
    pages_pinned: int = 0  # in the index under a lease
    pages_held: int = 0  # waiting for the end of an abandoned load
    # seconds
    ttft_hit: Histogram = field(default_factory=Histogram)  # of requests of which at least half was reused
    ttft_miss: Histogram = field(default_factory=Histogram)  # of the others
    tpot: Histogram = field(default_factory=Histogram)
    itl: Histogram = field(default_factory=Histogram)
    e2e: Histogram = field(default_factory=Histogram)
    queue_wait: Histogram = field(default_factory=Histogram)
    cache_wait: Histogram = field(default_factory=Histogram)

    def credit(self, tokens: dict[str, int], miss_reason: str, missed: int) -> None:
        """One request's prompt tokens by tier, and those of full blocks that were not found, by reason. The dict is
        replaced, not changed, so that a reader in another thread never sees half a request."""
        tiers = {*self.prompt_tokens, *tokens}
        self.prompt_tokens = {tier: self.prompt_tokens.get(tier, 0) + tokens.get(tier, 0) for tier in tiers}
        if missed:
            self.misses[miss_reason] = self.misses.get(miss_reason, 0) + 1
            self.missed_tokens[miss_reason] = self.missed_tokens.get(miss_reason, 0) + missed

    def judge(self, *, met: bool, tokens: int) -> None:
        """One request, which generated so many tokens, by its objective."""
        verdict = "met" if met else "missed"
        self.slo_requests[verdict] = self.slo_requests.get(verdict, 0) + 1
        self.slo_tokens[verdict] = self.slo_tokens.get(verdict, 0) + tokens

    def credit_seconds(self, saved_s: float | None) -> None:
        """One request's saved_s; what is not known counts as nothing."""
        if saved_s is not None:
            self.saved_s += max(saved_s, 0.0)
            self.lost_s += max(-saved_s, 0.0)

    def copy(self) -> "EngineStats":
        copies = {}
        for name in self.__slots__:
            value = getattr(self, name)
            copies[name] = value.copy() if isinstance(value, (dict, Histogram)) else value
        return EngineStats(**copies)
