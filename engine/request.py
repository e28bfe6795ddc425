"""What a caller hands the engine and what it gets back: frozen values, no behaviour, safe to pass between threads."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..connector.base import Miss

Priority = Literal["interactive", "batch"]
FinishReason = Literal["stop", "length", "cancelled", "error", "queue_timeout"]

#: Where a prompt token's KV came from. A receipt holds every one of them, and no other name but "remote".
TIERS = ("hbm", "dram", "nvme", "peer", "computed")

#: Bounds of a retention; the store's own.
MAX_PRIORITY = 100
MAX_TTL_S = 10 * 365 * 86400.0


class QueueFull(Exception):
    """The bounded queue has no place; a throttle, to be answered with 429 and Retry-After.

    Attributes:
        retry_after_s: when half of today's queue will have left it, from the recent rate.
    """

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(f"the queue is full; try again in {retry_after_s:.1f} s")
        self.retry_after_s = retry_after_s


class RequestRefused(ValueError):
    """The request can never be served (empty, unknown tokens, too long for the model or for the KV pool)."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when to stop. Raises ValueError, naming the field, for values out of range.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 keep every token. Penalties follow the usual definitions:
    repetition (CTRL, Keskar et al. 2019) over prompt and output, presence and frequency over the output only.
    logprobs: how many of the most likely tokens to report beside the chosen one; None reports nothing.
    max_tokens None: as many as the model length and the KV pool allow.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1

    def __post_init__(self) -> None:
        ranges = (
            ("temperature", self.temperature, 0.0, 100.0),
            ("top_p", self.top_p, 0.0, 1.0),
            ("top_k", self.top_k, 0, 2**31),
            ("min_p", self.min_p, 0.0, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01, 100.0),
            ("presence_penalty", self.presence_penalty, -2.0, 2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0, 2.0),
            ("max_tokens", 1 if self.max_tokens is None else self.max_tokens, 1, 2**31),
            ("logprobs", 0 if self.logprobs is None else self.logprobs, 0, 20),
            ("n", self.n, 1, 128),
        )
        for name, value, low, high in ranges:
            if not low <= value <= high:  # also refuses NaN
                raise ValueError(f"{name} must be between {low} and {high}, not {value}")
        if self.top_p == 0:
            raise ValueError("top_p must be above 0")
        if any(not text for text in self.stop):
            raise ValueError("stop must not hold an empty string")


@dataclass(frozen=True, slots=True)
class TokenRetention:
    """How long the KV of prompt tokens start .. end-1 is worth keeping; end None: to the prompt's end.

    priority: 0 (first to leave) to 100, 50 is everyone's. ttl_s: leaves first once not used for so long; 0 = no such
    limit. pin: leaves last, within the store's budget for pins. ValueError names the field that is wrong.
    """

    start: int = 0
    end: int | None = None
    priority: int = 50
    ttl_s: float = 0.0
    pin: bool = False

    def __post_init__(self) -> None:
        if self.start < 0:
            raise ValueError(f"start must not be negative, as {self.start} is")
        if self.end is not None and self.end <= self.start:
            raise ValueError(f"end must be above start: {self.end} is not above {self.start}")
        if not 0 <= self.priority <= MAX_PRIORITY:
            raise ValueError(f"priority must be between 0 and {MAX_PRIORITY}, not {self.priority}")
        if not 0 <= self.ttl_s <= MAX_TTL_S:
            raise ValueError(f"ttl_s must be between 0 and {MAX_TTL_S:.0f}, not {self.ttl_s}")


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt. `request_id` is the caller's, unique among the requests in flight.

    retention: where two ranges overlap, the later one holds. cache: whether it may reuse blocks, and leave its own.
    traceparent: W3C trace context, "" = nobody traces it.
    """

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    priority: Priority = "interactive"
    retention: tuple[TokenRetention, ...] = ()
    cache: bool = True
    traceparent: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log-probabilities of the model itself (before temperature, penalties and filters) at one position."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one request got from the cache; one per request, whatever its number of samples.

    tokens: prompt tokens by tier, always all of TIERS, summing to prompt_tokens. Credited once, when the request
    first runs: tokens computed again after a preemption are not in it.
    miss: why the first full block that had to be computed was not found; None if every full block was found.
    queue_wait_s: submit to first run. cache_wait_s: the part of it spent waiting for the store (fetch and load).
    saved_s: what computing the tokens that the store brought would have taken, less cache_wait_s; below zero when the
    wait was not worth it. None: tokens were brought, and what computing them takes is not known yet.
    ttft_s: submit to first token; None: it ended before that. computed_s: what its tokens up to there took of the
    model's time. time_s: Unix, when the receipt was complete.
    """

    prompt_tokens: int
    tokens: dict[str, int]
    miss: Miss | None
    queue_wait_s: float
    cache_wait_s: float
    saved_s: float | None = 0.0
    request_id: str = ""
    ttft_s: float | None = None
    computed_s: float = 0.0
    time_s: float = 0.0

    @property
    def miss_reason(self) -> str:
        """Of the miss; "" where there is none."""
        return self.miss.reason if self.miss is not None else ""

    @property
    def cached_tokens(self) -> int:
        return self.prompt_tokens - self.tokens["computed"]


@dataclass(frozen=True, slots=True)
class Output:
    """News of one sample. token_ids and text are what is new since the sample's last Output.

    text may lag behind token_ids (half a character, or the possible beginning of a stop string) and catches up by the
    last one, which is the one with a finish_reason. Each sample (index 0..n-1) gets exactly one such last Output.
    logprobs: one per token id, if asked for. receipt: on the last Output, unless the request never ran.
    """

    request_id: str
    index: int
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    receipt: Receipt | None = None
    error: str = ""
