"""EngineCore: one step after another. Takes requests in, plans, runs the model, samples, shares and saves the blocks
that became full, and tells the callers. No thread and no lock of its own: EngineLoop calls it from one thread, tests
call it directly.

A request is followed from here: submit() makes a Group and its Sequences, the scheduler lets them in (transfers ask
the store meanwhile), _advance() feeds back each step's result, _end() releases everything exactly once.
"""

import logging
import random
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import replace
from typing import Protocol

import numpy as np
from torch import Tensor

from ..connector.base import KVConnector, Miss
from ..connector.tracing import OFF, Tracer
from .accounts import Accounts, Objective
from .changes import Reports
from .config import EngineConfig
from .pool import NOT_IN_HBM, TOKEN_BYTES, KVPool
from .prefills import Prefills
from .receipts import Receipts
from .request import FinishReason, Output, Request, RequestRefused
from .retention import block_ranges
from .sampler import Sampled, sample
from .scheduler import Chunk, Scheduler, Step
from .sequence import Group, Sequence, State
from .stats import EngineStats
from .stop import Detokenizer
from .tracing import begin
from .transfers import Transfers, connector_limits

log = logging.getLogger(__name__)


class Vocabulary(Protocol):
    """What the core needs of a tokenizer."""

    @property
    def eos_ids(self) -> frozenset[int]: ...
    @property
    def vocab_size(self) -> int: ...
    def stream(self) -> Detokenizer: ...


class EngineCore:
    """Owns all state of the engine.

    run: computes one step's chunks into their pages, returns the logits [F, vocab] of the final ones in order.
    clock: monotonic seconds. entropy: seeds the requests that bring no seed.
    on_started, on_ended: called once a request, with its id, when it first runs and when its last sample has ended.
    """

    def __init__(  # noqa: PLR0913  what it owns, and what comes from outside
        self,
        pool: KVPool,
        run: Callable[[SequenceOf[Chunk]], Tensor],
        config: EngineConfig,
        vocabulary: Vocabulary,
        *,
        max_model_len: int,
        connector: KVConnector | None,
        clock: Callable[[], float],
        entropy: Callable[[], int],
        tracer: Tracer = OFF,
    ) -> None:
        self.stats = EngineStats()
        self.receipts = Receipts(config.receipts)
        self.capacity = min(max_model_len, pool.num_pages * pool.block_tokens)
        self.on_started: Callable[[str], None] = _ignore
        self.on_ended: Callable[[str], None] = _ignore
        self._pool = pool
        self._run = run
        self._vocabulary = vocabulary
        self._clock = clock
        self._entropy = entropy
        self._tracer = tracer
        self._max_queue_wait_s = config.max_queue_wait_s
        self._groups: dict[str, Group] = {}
        self._fresh: deque[Group] = deque()  # in order of submission; those that ran or ended leave when they get first
        self._arrivals = 0
        self._transfers = Transfers(
            pool,
            connector,
            self.stats,
            limits=connector_limits(config),
            ahead=config.kv_fetch_ahead,
            foreseen=config.kv_prefetch_ahead,
            clock=clock,
        )
        every_s = connector_limits(config).observe_every_s
        self._reports = Reports(
            pool, self._transfers.report if connector is not None else None, every_s=every_s, clock=clock
        )
        self._accounts = Accounts(
            self.stats,
            self.receipts,
            self._transfers.served,
            objective=Objective(config.slo_ttft_s, config.slo_itl_s),
            block_tokens=pool.block_tokens,
            clock=clock,
        )
        self._prefills = Prefills(self._transfers.observe, queued=pool.tensor.device.type != "cpu")
        self._scheduler = Scheduler(
            pool, self._transfers, max_step_tokens=config.max_step_tokens, max_running=config.max_running
        )

    @property
    def idle(self) -> bool:
        return not self._groups

    def validate(self, request: Request) -> None:
        """RequestRefused if it could never be served. Reads nothing that changes: any thread may call it."""
        prompt, most = np.asarray(request.prompt_ids), self.capacity - 1
        count = len(prompt)
        if count == 0:
            raise RequestRefused("the prompt is empty")
        if count > most:
            raise RequestRefused(
                f"the prompt has {count} tokens; model length and KV pool allow {most} and one to answer"
            )
        if prompt.dtype.kind != "i" or prompt.min() < 0 or prompt.max() >= self._vocabulary.vocab_size:
            raise RequestRefused(f"the prompt has token ids that are not in 0..{self._vocabulary.vocab_size - 1}")

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Queues a validated request whose id is not in use."""
        assert request.request_id not in self._groups
        params = request.params
        shares = request.cache and self._pool.index is not None
        group = Group(request, on_output, self._clock(), prefilled=not shares)
        group.span = begin(self._tracer, request, group.submitted_s)
        kept = request.retention if shares else ()
        group.retention = block_ranges(kept, len(request.prompt_ids), self._pool.block_tokens)
        seed = self._entropy() if params.seed is None else params.seed
        for index in range(params.n):
            self._arrivals += 1
            group.sequences.append(
                Sequence(
                    group,
                    index,
                    arrival=self._arrivals,
                    capacity=self.capacity,
                    rng=random.Random(f"{seed}/{index}"),
                    detokenizer=self._vocabulary.stream(),
                )
            )
        for seq in group.sequences:
            self._scheduler.queue.add(seq)
        self._groups[request.request_id] = group
        self._fresh.append(group)
        self.stats.requests += 1

    def cancel(self, request_id: str) -> None:
        """Ends what is left of a request; unknown ids are ignored."""
        group = self._groups.get(request_id)
        for seq in group.alive if group else ():
            self._end(seq, "cancelled")

    def fail_all(self, error: str) -> None:
        for group in list(self._groups.values()):
            for seq in group.alive:
                self._end(seq, "error", error=error)

    def abandon(self, error: str) -> None:
        """Tells every caller that it is over, and touches nothing else: for when the state is not to be trusted."""
        for group in list(self._groups.values()):
            for seq in group.alive:
                seq.state = State.FINISHED
                self._emit(group, Output(group.request.request_id, seq.index, finish_reason="error", error=error))
        self._groups.clear()

    def step(self) -> bool:
        """One step. False: nothing can run until a request, a connector event or next_deadline_s()."""
        self._transfers.drain(len(self._scheduler.running))
        self._expire()
        step = self._scheduler.plan()
        self.stats.preemptions += len(step.preempted)
        for seq in step.admitted:
            self._started(seq)
        if not step.chunks:
            self._reports.send()
            return bool(step.preempted) or self._break_deadlock()
        began_s = self._clock()
        finals = [chunk.sequence for chunk in step.chunks if chunk.final]
        try:
            logits = self._run(step.chunks)
            results = dict(zip(finals, sample(logits, [seq.sampler for seq in finals]), strict=True))
        except Exception as error:
            log.exception("a step failed; its %d sequences end with an error", len(step.chunks))
            self.stats.step_errors += 1
            for chunk in step.chunks:
                self._end(chunk.sequence, "error", error=f"{type(error).__name__}: {error}")
            return True
        self._account(step, began_s)
        for chunk in step.chunks:
            self._advance(chunk, results.get(chunk.sequence))
        self._reports.send()
        return True

    def next_deadline_s(self) -> float | None:
        """When step() is to be called again although nothing happened; None if never."""
        waits = [self._transfers.next_deadline_s(), self._reports.next_s()]
        if self._fresh:
            waits.append(self._fresh[0].submitted_s + self._max_queue_wait_s)
        return min((wait for wait in waits if wait is not None), default=None)

    def in_hbm(self, tokens: bytes) -> tuple[int, Miss]:
        """How many leading packed tokens are in HBM, and why not more. Leases and counts nothing."""
        size = self._pool.block_tokens
        blocks = self._pool.known(tokens, len(tokens) // (size * TOKEN_BYTES))
        return blocks * size, self._pool.missing(tokens)

    def clear_hbm(self) -> int:
        return self._pool.clear()

    def snapshot(self) -> EngineStats:
        """A copy of the statistics with its gauges set."""
        stats = self.stats.copy()
        stats.waiting = len(self._scheduler.queue)
        stats.running = len(self._scheduler.running)
        stats.admitted_tokens = sum(len(seq.tokens) for seq in self._scheduler.running)
        stats.capacity_tokens = self._pool.num_pages * self._pool.block_tokens
        stats.pages = self._pool.num_pages
        stats.pages_free = self._pool.free_pages
        stats.pages_cached = self._pool.evictable
        stats.pages_pinned = self._pool.pinned
        stats.pages_held = len(self._transfers.held)
        return stats

    def check(self) -> None:
        """Recounts everything; AssertionError if a page, lease or sequence is lost or counted twice."""
        alive = [seq for group in self._groups.values() for seq in group.alive]
        assert all(group.alive for group in self._groups.values()), "a request without samples is kept"
        running, waiting = self._scheduler.running, list(self._scheduler.queue)
        assert len(alive) == len(running) + len(waiting), "a sequence is lost, or in two places"
        assert {*running, *waiting} == set(alive)
        assert all(seq.state is State.RUNNING for seq in running)
        prepared = {seq for seq in waiting if seq.state is not State.WAITING}
        assert prepared == set(self._transfers.prepared), "a sequence is prepared, but not known to be"
        assert self._transfers.foreseen <= set(waiting) - prepared, "a prefetch stands for nobody"
        self._pool.check([seq.table for seq in alive], self._transfers.pins, self._transfers.held)

    def close(self) -> None:
        """Cancels what is left and ends the connector."""
        for request_id in list(self._groups):
            self.cancel(request_id)
        self._transfers.close()

    def _expire(self) -> None:
        """Ends requests that waited too long for their first run."""
        latest_s = self._clock() - self._max_queue_wait_s
        while self._fresh:
            group = self._fresh[0]
            if group.first_run_s is None and group.alive:
                if group.submitted_s > latest_s:
                    return
                for seq in group.alive:
                    self._end(seq, "queue_timeout")
            self._fresh.popleft()

    def _started(self, seq: Sequence) -> None:
        """Credits the request, the first time one of its samples runs."""
        if seq.group.first_run_s is not None:
            return
        self._pool.touch(seq.table)
        full = seq.reusable_blocks(self._pool.block_tokens)
        if seq.miss.reason == NOT_IN_HBM and seq.table.shared < full:
            seq.miss = self._pool.missing(seq.packed(full * self._pool.block_tokens))
        self._accounts.started(seq)
        self.on_started(seq.group.request.request_id)

    def _account(self, step: Step, began_s: float) -> None:
        ended_s = self._clock()
        self._accounts.stepped(step.chunks, ended_s - began_s)
        self._prefills.step(step.chunks, began_s, ended_s)

    def _advance(self, chunk: Chunk, result: Sampled | None) -> None:
        """The chunk's KV is in its pages: shares what is full, takes the new token, saves."""
        seq = chunk.sequence
        if seq.state is not State.RUNNING:  # cancelled by a caller's on_output during this very step
            return
        seq.computed += chunk.count
        full = seq.computed // self._pool.block_tokens
        if seq.cached and full > seq.table.shared:
            self._pool.publish(seq.table, seq.packed(full * self._pool.block_tokens), full)
        self._transfers.save(seq)
        if seq.computed >= len(seq.prompt):
            seq.group.prefilled = True
            self._transfers.retain(seq)
        if result is not None:
            self._take(seq, result)

    def _take(self, seq: Sequence, result: Sampled) -> None:
        """One more token of the output."""
        token, group, reason = result.token_id, seq.group, None
        seq.append(token)
        self._accounts.token(seq)
        text = ""
        if seq.ends_with(token, self._vocabulary.eos_ids):
            reason = "stop"
        else:
            text = seq.text.push([token])
            if seq.text.stopped:
                reason = "stop"
            elif seq.output_tokens >= seq.max_output:
                reason = "length"
        logprobs = None if result.logprob is None else (result.logprob,)
        output = Output(group.request.request_id, seq.index, (token,), text, logprobs=logprobs)
        if reason is None:
            self._emit(group, output)
        else:
            self._end(seq, reason, output=output)

    def _end(self, seq: Sequence, reason: FinishReason, *, error: str = "", output: Output | None = None) -> None:
        """The one way out: saves, releases, counts, and sends the last Output, completed from `output`."""
        group = seq.group
        if reason in {"stop", "length"}:
            self._transfers.save(seq, last=True)
        self._scheduler.remove(seq)
        if seq.index == 0:
            group.prefilled = True  # the other samples wait for nobody any more
        self._accounts.ended(seq, reason)
        request_id = group.request.request_id
        if not group.alive:
            del self._groups[request_id]
            self.on_ended(request_id)
        output = output or Output(request_id, seq.index)
        text = output.text + seq.text.flush()
        self._emit(group, replace(output, text=text, finish_reason=reason, receipt=group.receipt, error=error))

    def _emit(self, group: Group, output: Output) -> None:
        try:
            group.on_output(output)
        except Exception:
            log.exception("on_output of request %s raised; the request is cancelled", output.request_id)
            group.on_output = _ignore
            self.cancel(output.request_id)

    def _break_deadlock(self) -> bool:
        """Nothing can run and nothing is under way that would free pages: a transfer never ended and its pages are
        lost. Ends the one request that is next, so that no wait is for ever. True if there was one."""
        if self._transfers.in_flight():
            return False
        stuck = self._scheduler.running or [s for s in self._scheduler.queue.candidates() if s.state is State.READY]
        if stuck:
            lost = self._pool.num_pages - self._pool.available
            self._end(stuck[0], "error", error=f"too few KV pages: {lost} are kept by transfers that never ended")
        return bool(stuck)


def _ignore(_: object) -> None:
    return
