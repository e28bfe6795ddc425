"""Prefills: which steps tell what prefill takes: those that computed tokens of one prompt and nothing else."""

from collections.abc import Callable, Sequence

from .scheduler import Chunk


class Prefills:
    """report(context tokens before, tokens computed, seconds) for each clean measurement.

    queued: the device computes behind the program's back, so that only a step whose result was read has waited for it;
    the chunks of a prompt are then measured together, up to its last one. Belongs to the engine's thread.
    """

    def __init__(self, report: Callable[[int, int, float], None], *, queued: bool) -> None:
        self._report = report
        self._queued = queued
        self._settled = True  # nothing is left to compute from the steps before
        self._run: tuple[int, float] | None = None  # of one prompt in consecutive steps: first token, when it began
        self._next: tuple[object, int] | None = None  # the sequence and token with which the run goes on

    def step(self, chunks: Sequence[Chunk], began_s: float, ended_s: float) -> None:
        """After a step, before its tokens are counted as computed."""
        alone = chunks[0] if len(chunks) == 1 and not chunks[0].sequence.decoding else None
        settled, self._settled = self._settled, not self._queued or any(chunk.final for chunk in chunks)
        if alone is None:
            self._run = None
            return
        seq, first = alone.sequence, alone.sequence.computed
        if settled:
            self._run = (first, began_s)
        elif self._next != (seq, first):
            self._run = None
        self._next = (seq, first + alone.count)
        if self._run is not None and self._settled:
            self._report(self._run[0], first + alone.count - self._run[0], ended_s - self._run[1])
