"""Scheduler: which sequences get how many tokens in the next step, who enters, who has to leave.

One step feeds the model at most `max_step_tokens` tokens: first one for each decoding sequence, then chunks of
prompts that have begun, then new sequences. Interactive goes before batch, but after TURN interactive admissions in
a row a waiting batch sequence gets in, and counts as interactive from then on. A prompt gets all its pages when it
enters; a decoding sequence that needs one more and finds none takes it from what waiting sequences hold, then from
the running sequence of lowest priority and latest arrival, which is preempted: it starts again later, and whatever
is still cached of it is not computed again. Belongs to the engine's thread.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

from .pool import KVPool
from .sequence import Sequence, State

TURN = 8


class Preparation(Protocol):
    """What happens to a waiting sequence before it can run (the store is asked for its KV)."""

    @property
    def active(self) -> bool:
        """Whether preparing ahead of admission is of any use."""
        ...

    @property
    def prepared(self) -> list[Sequence]:
        """Those between begin() and finish()."""
        ...

    def begin(self, seq: Sequence) -> bool:
        """WAITING -> READY at once, or after events; False if enough are being prepared."""
        ...

    def anticipate(self, waiting: Iterable[Sequence]) -> None:
        """These come next, in this order, and cannot be prepared yet."""
        ...

    def release(self, seq: Sequence) -> None:
        """FETCHING or READY -> WAITING; whatever it holds is given back."""
        ...

    def finish(self, seq: Sequence) -> None:
        """It runs now, with what it got."""
        ...

    def stopped(self, seq: Sequence) -> None:
        """It ran, and does not any more."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """`count` tokens of a sequence to be computed, from its `computed` on."""

    sequence: Sequence
    count: int

    @property
    def final(self) -> bool:
        """Whether the sequence's next token is to be sampled."""
        return self.count == self.sequence.pending


@dataclass(slots=True)
class Step:
    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


class WaitingQueue:
    """Sequences that wait to run, by class and arrival. Adding at the end is O(1), the rest a short memory move."""

    def __init__(self) -> None:
        self._classes: tuple[list[Sequence], list[Sequence]] = ([], [])  # interactive, batch
        self._streak = 0  # interactive admissions since the last batch one, while batch waited

    def __len__(self) -> int:
        return len(self._classes[0]) + len(self._classes[1])

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._classes[0]
        yield from self._classes[1]

    def add(self, seq: Sequence) -> None:
        insort(self._classes[seq.rank[0]], seq, key=_arrival)

    def remove(self, seq: Sequence) -> None:
        line = self._classes[seq.rank[0]]
        at = bisect_left(line, seq.arrival, key=_arrival)
        assert line[at] is seq
        del line[at]

    def admit(self, seq: Sequence) -> None:
        """Removes it to run, and counts turns."""
        batch = seq.rank[0]
        self.remove(seq)
        if batch:
            seq.promoted = self._streak >= TURN
            self._streak = 0
        elif self._classes[1]:
            self._streak += 1

    def candidates(self) -> Iterator[Sequence]:
        """In the order in which they would be admitted, from a snapshot: the queue may change meanwhile."""
        interactive, batch = (iter(list(line)) for line in self._classes)
        streak = self._streak
        for seq in batch:
            while streak < TURN and (other := next(interactive, None)) is not None:
                streak += 1
                yield other
            streak = 0
            yield seq
        yield from interactive


class Scheduler:
    """Owns the queue and the running sequences; state changes to and from RUNNING happen here."""

    def __init__(self, pool: KVPool, preparation: Preparation, *, max_step_tokens: int, max_running: int) -> None:
        self.queue = WaitingQueue()
        self.running: list[Sequence] = []
        self._pool = pool
        self._preparation = preparation
        self._max_step_tokens = max_step_tokens
        self._max_running = max_running

    def plan(self) -> Step:
        """The next step; its sequences have all the pages it needs. No chunks: nothing can run now."""
        step = Step()
        budget = self._max_step_tokens
        order = sorted(self.running, key=_rank)
        for seq in order:
            if seq.decoding and seq.state is State.RUNNING and self._make_room(seq, step):
                step.chunks.append(Chunk(seq, 1))
                budget -= 1
        for seq in order:
            if budget and seq.state is State.RUNNING and not seq.decoding:
                budget -= self._chunk(seq, step, budget)
        self._admit(step, budget)
        return step

    def remove(self, seq: Sequence) -> None:
        """It leaves for good, from wherever it is."""
        if seq.state is State.RUNNING:
            self.running.remove(seq)
            self._preparation.stopped(seq)
        else:
            self.queue.remove(seq)
            self._preparation.finish(seq)
        seq.state = State.FINISHED
        self._pool.drop(seq.table)

    def _chunk(self, seq: Sequence, step: Step, budget: int) -> int:
        count = min(seq.pending, budget)
        step.chunks.append(Chunk(seq, count))
        return count

    def _make_room(self, seq: Sequence, step: Step) -> bool:
        """A page for its next token, at the expense of those behind it. False: it has to wait, or was preempted."""
        while not self._pool.grow(seq.table, len(seq.tokens)):
            if self._reclaim():
                continue
            if len(self.running) == 1:
                return False  # transfers in flight hold the rest; their end wakes the engine
            victim = max(self.running, key=_rank)
            self._preempt(victim)
            step.preempted.append(victim)
            if victim is seq:
                return False
        return True

    def _preempt(self, seq: Sequence) -> None:
        self.running.remove(seq)
        self._preparation.stopped(seq)
        self._pool.drop(seq.table)
        seq.computed = 0
        seq.state = State.WAITING
        self.queue.add(seq)

    def _reclaim(self, keep: Sequence | None = None) -> bool:
        """Unleases what the last waiting sequence but `keep` holds; False if none holds any."""
        holders = [s for s in self._preparation.prepared if s.table.blocks and s.state is not State.LOADING]
        holders = [s for s in holders if s is not keep]
        if holders:
            self._preparation.release(max(holders, key=_rank))
        return bool(holders)

    def _admit(self, step: Step, budget: int) -> None:
        """Lets in who fits, in order; those still being prepared are passed by. Prepares some of those behind."""
        admitting = budget > 0 and not step.preempted
        passed: set[Sequence] = set()
        candidates = self.queue.candidates()
        for seq in candidates:
            if not admitting and not self._preparation.active:
                break
            if seq.blocked:
                continue
            if seq.state is State.WAITING and not self._prepare(seq, passed):
                self._preparation.anticipate(chain((seq,), candidates))
                break
            if admitting and seq.state is State.READY:
                admitting = len(self.running) < self._max_running and self._fits(seq)
                if admitting:
                    self._start(seq, step)
                    budget -= self._chunk(seq, step, budget)
                    admitting = budget > 0
            passed.add(seq)

    def _prepare(self, seq: Sequence, ahead: set[Sequence]) -> bool:
        """Begins its preparation; if enough are being prepared, at the expense of one that is not `ahead` of it."""
        if self._preparation.begin(seq):
            return True
        behind = [s for s in self._preparation.prepared if s not in ahead and s.state is not State.LOADING]
        if behind:
            self._preparation.release(max(behind, key=_rank))
        return bool(behind) and self._preparation.begin(seq)

    def _fits(self, seq: Sequence) -> bool:
        """Whether all its pages can be had, with one left for each running sequence's next block."""
        limit = seq.reusable_blocks(self._pool.block_tokens)
        if seq.cached:
            self._pool.attach(seq.table, seq.packed(limit * self._pool.block_tokens), limit)
        need = -(-len(seq.tokens) // self._pool.block_tokens) - seq.table.shared
        while need + len(self.running) > self._pool.available:
            if self.running or not self._reclaim(keep=seq):
                return False
        return True

    def _start(self, seq: Sequence, step: Step) -> None:
        seq.computed = seq.table.shared * self._pool.block_tokens
        grown = self._pool.grow(seq.table, len(seq.tokens))
        assert grown, "admitted without room"
        self.queue.admit(seq)
        self._preparation.finish(seq)
        seq.state = State.RUNNING
        self.running.append(seq)
        step.admitted.append(seq)


def _arrival(seq: Sequence) -> int:
    return seq.arrival


def _rank(seq: Sequence) -> tuple[bool, int]:
    return seq.rank
