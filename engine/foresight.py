"""Foresight: prefetches for requests that wait behind the look-ahead, so that what they will fetch is near by then.

A prefetch is a hint: the store reads from its slow tiers into DRAM what is worth it, and promises nothing. Only the
first few of the queue are foreseen, in the order in which they would be admitted: what admission will not run soon
would push out what it will. Belongs to the engine's thread.
"""

from collections.abc import Callable, Iterable

from .pool import KVPool
from .sequence import Sequence, State

RETRY_S = 0.25  # after a refusal (no store, or too many prefetches of others)


class Foresight:
    """prefetch(id, tokens, blocks in HBM): whether it was taken; cancel(id). most: sequences foreseen at a time."""

    def __init__(
        self,
        pool: KVPool,
        prefetch: Callable[[str, bytes, int], bool],
        cancel: Callable[[str], None],
        *,
        most: int,
        clock: Callable[[], float],
    ) -> None:
        self._pool = pool
        self._prefetch = prefetch
        self._cancel = cancel
        self._most = most
        self._clock = clock
        self._seen: dict[Sequence, bool] = {}  # True: a prefetch stands; False: there is nothing to fetch
        self._resume_s = 0.0

    @property
    def seen(self) -> frozenset[Sequence]:
        return frozenset(self._seen)

    def consider(self, waiting: Iterable[Sequence]) -> None:
        """`waiting` in order of admission. At most `most` of them are looked at, and each only once."""
        if len(self._seen) >= self._most or self._clock() < self._resume_s:
            return
        for seq in waiting:
            if seq in self._seen or seq.blocked or not seq.cached or seq.state is not State.WAITING:
                continue
            if not self._foresee(seq):
                self._resume_s = self._clock() + RETRY_S
                return
            if len(self._seen) >= self._most:
                return

    def forget(self, seq: Sequence) -> None:
        """It is being prepared now, or has ended."""
        if self._seen.pop(seq, False):
            self._cancel(seq.key)

    def _foresee(self, seq: Sequence) -> bool:
        """False: ask again later."""
        limit = seq.reusable_blocks(self._pool.block_tokens)
        tokens = seq.packed(limit * self._pool.block_tokens)
        known = self._pool.known(tokens, limit)
        if known < limit and not self._prefetch(seq.key, tokens, known):
            return False
        self._seen[seq] = known < limit
        return True
