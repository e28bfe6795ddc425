"""Accounts: what each request got and how long it took, counted once, when it happens. Belongs to the engine's thread.

A request is credited when it first runs, and its receipt is complete with its first token, or with its end if that
comes first. Then the receipt goes to the ring and to the store, once; a request that never ran was given nothing and
has none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from ..connector.base import Receipt as Served
from .receipt import final_miss, is_hit, saved_seconds, tokens_by_tier
from .receipts import Receipts
from .request import FinishReason, Receipt
from .scheduler import Chunk
from .sequence import Group, Sequence
from .stats import EngineStats
from .tracing import finish


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request is to meet: seconds to its first token, mean seconds between its tokens; None = no matter."""

    ttft_s: float | None = None
    itl_s: float | None = None

    @property
    def given(self) -> bool:
        return self.ttft_s is not None or self.itl_s is not None


class Accounts:
    """served: told of each receipt, for the store. clock: monotonic seconds."""

    def __init__(
        self,
        stats: EngineStats,
        receipts: Receipts,
        served: Callable[[Served], None],
        *,
        objective: Objective,
        block_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._stats = stats
        self._receipts = receipts
        self._served = served
        self._objective = objective
        self._block_tokens = block_tokens
        self._clock = clock

    def started(self, seq: Sequence) -> None:
        """One of a request's samples runs, the first one to do so."""
        group, size, now = seq.group, self._block_tokens, self._clock()
        group.first_run_s = now
        missed = (seq.reusable_blocks(size) - seq.table.shared) * size
        miss = final_miss(seq.miss, seq.table.shared * size, size) if missed else None
        tokens = tokens_by_tier(len(seq.prompt), seq.computed, seq.loaded)
        waited_s, saved_s = seq.cache_wait_s, saved_seconds(seq.loaded, seq.compute_s, seq.cache_wait_s)
        group.receipt = Receipt(
            len(seq.prompt),
            tokens,
            miss,
            now - group.submitted_s,
            waited_s,
            saved_s,
            request_id=group.request.request_id,
        )
        self._stats.credit(tokens, miss.reason if miss is not None else "", missed)
        self._stats.credit_seconds(saved_s)
        self._stats.queue_wait.observe(now - group.submitted_s)
        self._stats.cache_wait.observe(waited_s)

    def stepped(self, chunks: Iterable[Chunk], seconds: float) -> None:
        """A step took so long. The time of a mixed one is shared by tokens."""
        counts = [(chunk.sequence, chunk.count, chunk.sequence.decoding) for chunk in chunks]
        total = sum(count for _, count, _ in counts)
        decoded = sum(count for _, count, decoding in counts if decoding)
        stats = self._stats
        stats.steps += 1
        stats.decode_tokens += decoded
        stats.prefill_tokens += total - decoded
        stats.decode_s += seconds * decoded / total
        stats.prefill_s += seconds * (total - decoded) / total
        for seq, count, _ in counts:
            if seq.group.first_token_s is None:
                seq.group.computed_s += seconds * count / total

    def token(self, seq: Sequence) -> None:
        """One more token of a sample's output."""
        group, now = seq.group, self._clock()
        self._stats.generated_tokens += 1
        group.output_tokens += 1
        if group.first_token_s is None:
            group.first_token_s = now
            self._first_token(group, now - group.submitted_s)
        if seq.last_token_s is None:
            seq.first_token_s = now
        else:
            self._stats.itl.observe(now - seq.last_token_s)
        seq.last_token_s = now

    def ended(self, seq: Sequence, reason: FinishReason) -> None:
        """A sample has ended. To be called before its last Output is made, which carries the receipt."""
        group, stats, now = seq.group, self._stats, self._clock()
        stats.finished[reason] = stats.finished.get(reason, 0) + 1
        stats.e2e.observe(now - group.submitted_s)
        itl_s = self._mean_itl_s(seq)
        if itl_s is not None:
            stats.tpot.observe(itl_s)
            group.late = group.late or (self._objective.itl_s is not None and itl_s > self._objective.itl_s)
        group.late = group.late or reason in {"error", "queue_timeout"}
        group.left = group.left or reason == "cancelled"
        if not group.alive:
            self._close(group, None)
            finish(group, reason, now)
            if self._objective.given and not group.left:
                stats.judge(met=not group.late, tokens=group.output_tokens)

    def _first_token(self, group: Group, ttft_s: float) -> None:
        assert group.receipt is not None
        hit = is_hit(group.receipt.cached_tokens, group.receipt.prompt_tokens)
        (self._stats.ttft_hit if hit else self._stats.ttft_miss).observe(ttft_s)
        group.late = self._objective.ttft_s is not None and ttft_s > self._objective.ttft_s
        self._close(group, ttft_s)

    def _close(self, group: Group, ttft_s: float | None) -> None:
        """Completes the receipt, if there is one that is not complete, and passes it on."""
        if group.receipt is None or group.closed:
            return
        group.closed = True
        receipt = replace(group.receipt, ttft_s=ttft_s, computed_s=group.computed_s)
        group.receipt = self._receipts.add(receipt)
        self._served(self._told(group, receipt))

    def _told(self, group: Group, receipt: Receipt) -> Served:
        """As the store hears it, with the prompt where it was not asked about it."""
        seq = group.sequences[0]
        full = receipt.prompt_tokens // self._block_tokens * self._block_tokens
        return Served(
            receipt.request_id,
            receipt.tokens,
            receipt.miss,
            receipt.queue_wait_s,
            receipt.cache_wait_s,
            receipt.saved_s,
            receipt.ttft_s or 0.0,
            receipt.computed_s,
            prompt=b"" if group.asked or not seq.cached else seq.packed(full),
        )

    @staticmethod
    def _mean_itl_s(seq: Sequence) -> float | None:
        if seq.first_token_s is None or seq.last_token_s is None or seq.output_tokens < 2:
            return None
        return (seq.last_token_s - seq.first_token_s) / (seq.output_tokens - 1)
