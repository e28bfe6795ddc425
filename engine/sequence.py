"""Sequence: one sample of one request on its way through the engine; Group: what the samples of a request share.

    WAITING ─► READY ─► RUNNING ─► FINISHED        no store, or nothing to ask it for
    WAITING ─► FETCHING ─► LOADING ─► READY        the store is asked; any trouble leads to READY with less
    RUNNING ─► WAITING                             preempted: its KV will be found again or recomputed

FINISHED can follow any state. Both belong to the engine's thread.
"""

import random
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np

from ..connector import Miss, RetentionRange
from ..connector.tracing import NO_SPAN, Span
from .pool import TOKEN_BYTES, PageTable
from .request import Output, Receipt, Request
from .sampler import SamplerState
from .stop import Detokenizer, TextStream


class State(Enum):
    WAITING = "waiting"
    FETCHING = "fetching"
    LOADING = "loading"
    READY = "ready"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False)
class Group:
    """One request. prefilled: the first sample's prompt is computed, so the others may match it. retention: of ranges
    of its prompt's blocks; retained: the store was told, also of those that it had already. asked: the store looked at
    the prompt. closed: the receipt is complete. late: it has missed its objective; left: its client did not wait. span:
    of the request, for traces."""

    request: Request
    on_output: Callable[[Output], None]
    submitted_s: float
    prefilled: bool
    sequences: list["Sequence"] = field(default_factory=list)
    retention: tuple[RetentionRange, ...] = ()
    retained: bool = False
    asked: bool = False
    first_run_s: float | None = None
    first_token_s: float | None = None
    computed_s: float = 0.0
    output_tokens: int = 0
    receipt: Receipt | None = None
    closed: bool = False
    late: bool = False
    left: bool = False
    span: Span = NO_SPAN

    @property
    def alive(self) -> list["Sequence"]:
        return [seq for seq in self.sequences if seq.state is not State.FINISHED]


class Sequence:
    """tokens: prompt and output so far. computed: how many of them have KV in the table's pages; those still pending
    are at least one (the newest token, whose KV the next step computes)."""

    def __init__(
        self, group: Group, index: int, *, arrival: int, capacity: int, rng: random.Random, detokenizer: Detokenizer
    ) -> None:
        """capacity: most tokens, prompt included, that model and pool allow for one sequence."""
        params = group.request.params
        self.group = group
        self.index = index
        self.arrival = arrival
        self.prompt = list(group.request.prompt_ids)
        self.tokens = list(self.prompt)
        self._packed = bytearray(np.asarray(self.prompt, dtype="<i4").tobytes())
        room = capacity - len(self.prompt)
        self.max_output = room if params.max_tokens is None else min(room, params.max_tokens)
        self.sampler = SamplerState(params, self.prompt, rng)
        self.text = TextStream(detokenizer, params.stop)
        self.state = State.WAITING
        self.table = PageTable()
        self.computed = 0
        self.promoted = False  # a batch sequence that waited its turn out: treated as interactive from then on
        self.saved = 0  # leading blocks handed to the store, or known to be there
        self.cycle = 0  # how often it was prepared; makes the connector's ids unique
        self.loaded: dict[str, int] = {}  # tokens by tier that the store brought for the coming run
        self.compute_s = 0.0  # what computing those would take; 0 = not known
        self.miss = Miss("")
        self.cache_wait_s = 0.0
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None

    @cached_property
    def key(self) -> str:
        """Unique in the engine's life, unlike the caller's request id."""
        return f"{self.group.request.request_id}/{self.index}.{self.arrival}"

    @property
    def rank(self) -> tuple[bool, int]:
        """Who goes first: the smaller one."""
        return (self.group.request.priority == "batch" and not self.promoted, self.arrival)

    @property
    def cached(self) -> bool:
        """Whether it may reuse blocks, and leave its own."""
        return self.group.request.cache

    @property
    def blocked(self) -> bool:
        """Waits for the request's first sample to compute the prompt they share."""
        return self.index > 0 and not self.group.prefilled

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - len(self.prompt)

    @property
    def decoding(self) -> bool:
        return self.output_tokens > 0 and self.pending == 1

    def packed(self, tokens: int) -> bytes:
        """The first `tokens` tokens in the form that the index and the store take."""
        return bytes(self._packed[: tokens * TOKEN_BYTES])

    def append(self, token_id: int) -> None:
        self.tokens.append(token_id)
        self._packed += token_id.to_bytes(TOKEN_BYTES, "little")

    def reusable_blocks(self, block_tokens: int) -> int:
        """Full blocks that a cache may bring; the last token is always computed, for its logits."""
        return (len(self.tokens) - 1) // block_tokens

    def ends_with(self, token_id: int, eos_ids: SequenceOf[int] | frozenset[int]) -> bool:
        """Whether this token ends the output by itself (it is not shown)."""
        params = self.sampler.params
        return token_id in params.stop_token_ids or (not params.ignore_eos and token_id in eos_ids)
