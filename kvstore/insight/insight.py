"""Insight: one object a store, fed by what is asked of it and by the receipts of its engines. Used on its loop.

Only counting and queueing is done where requests are served; see background.py for the rest.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..ghosts import traces
from ..stats import StoreStats
from ..types import Receipt
from .background import Background
from .facts import Asked, SpaceFacts
from .history import FINE_S, History
from .kinds import TextOf
from .lint import Lint
from .receipts import Receipts
from .served import Served
from .spaces import Spaces
from .types import Finding, Sample, SpaceInsight

log = logging.getLogger(__name__)

DEFAULT_RECEIPTS = 4096
MOST_BLOCKS = 1 << 15  # of one prompt; what is behind is not looked at
_PIECE_BLOCKS = 1024  # hashed in one step: 0.3 ms
_FRESH_S = 1.0  # what was read from the sketches is read again after so long


class Insight:
    """receipts: the last of them. text: of prompts, where operators allow it. clock: monotonic; wall: Unix time; cpu:
    seconds that this thread has worked."""

    def __init__(
        self,
        *,
        receipts: int = DEFAULT_RECEIPTS,
        text: TextOf = lambda label, tokens: "",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        self.receipts = Receipts(receipts)
        self.served_totals = Served()
        self._clock = clock
        self._wall = wall
        self._spaces = Spaces(self._capacities)
        self._lint = Lint(text)
        self._background = Background(self.look, cpu)
        self._stats: Callable[[], StoreStats] | None = None
        self._sizes: tuple[int, int] = (0, 0)
        self._history: History | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._read: tuple[float, list[SpaceInsight]] = (float("-inf"), [])

    @property
    def skipped(self) -> int:
        """Prompts that were not looked at, since there was no time to."""
        return self._background.skipped

    @property
    def looked(self) -> int:
        """Prompts that were looked at."""
        return self._background.looked

    @property
    def worked_s(self) -> float:
        """What that took of the loop, all told."""
        return self._background.worked_s

    def attach(self, stats: Callable[[], StoreStats]) -> None:
        """To the store whose traffic it is; once."""
        self._stats, now = stats, stats()
        self._history = History(now, self._wall)
        self._measure(now)

    def start(self) -> None:
        """Work from now on, on the running loop; nothing where there is none, or where it works already."""
        if self._tasks and not self._tasks[0].get_loop().is_closed():
            return
        with contextlib.suppress(RuntimeError):  # nobody's loop: a test, or a tool
            loop = asyncio.get_running_loop()
            work: list[Coroutine[Any, Any, None]] = [self._background.run(), self._sampling()]
            self._tasks = [loop.create_task(each, name="insight") for each in work]
            for task in self._tasks:
                task.add_done_callback(_ended)

    def stop(self) -> None:
        """Work no more."""
        for task in self._tasks:
            if not task.get_loop().is_closed():
                task.cancel()
        self._tasks = []

    def asked(self, facts: SpaceFacts, tokens: bytes, found_blocks: int, reason: str) -> None:
        """A prompt was asked for, of which so many leading blocks were found, in the engine or here."""
        self._background.put(Asked(facts, tokens, found_blocks, reason, self._clock()))

    def served(self, receipt: Receipt, facts: SpaceFacts | None = None) -> None:
        """One request got this. facts: of its namespace, where the store may not have been asked about the prompt."""
        if receipt.prompt and facts is not None:
            found = sum(receipt.tokens.values()) - receipt.tokens.get("computed", 0)
            reason = receipt.miss.reason if receipt.miss is not None else ""
            self.asked(facts, receipt.prompt, found // facts.block_tokens, reason)
        # Without the prompt, which may be long: receipts are kept by the thousand.
        receipt = replace(receipt, prompt=b"", time_s=receipt.time_s or self._wall())
        self.receipts.add(receipt)
        self.served_totals.add(receipt)
        if self._history is not None:
            self._history.add(receipt)

    def spaces(self, fingerprint: bytes = b"") -> list[SpaceInsight]:
        """All of the store's first, then each namespace's, or only that one's."""
        now = self._clock()
        if now - self._read[0] >= _FRESH_S:
            self._read = now, self._spaces.read(now)
        found = self._read[1]
        return [each for each in found if each.fingerprint == fingerprint] if fingerprint else list(found)

    def findings(self) -> list[Finding]:
        """Those that cost most first."""
        return self._lint.findings(self._clock())

    def history(self, since_s: float = 0.0) -> Sequence[Sample]:
        """Intervals that ended after that Unix time, oldest first."""
        return self._history.since(since_s) if self._history is not None else []

    def sample(self) -> None:
        """End the running second of the history. About 0.2 ms."""
        if self._history is not None and self._stats is not None:
            now = self._stats()
            self._history.sample(now)
            self._measure(now)

    def catch_up(self) -> None:
        """Look at everything that waits, now."""
        self._background.catch_up()
        self._read = (float("-inf"), [])

    def forget(self, fingerprint: bytes | None) -> None:
        """Keep no token of prompts of this namespace, or of any: it was cleared."""
        self._background.forget(fingerprint)
        self._lint.forget(fingerprint)

    def look(self, asked: Asked) -> Iterator[None]:
        """Learn all there is from one prompt, in steps of about a millisecond; for the background task."""
        facts = asked.facts
        size = facts.block_tokens * 4
        count = min(len(asked.tokens) // size, MOST_BLOCKS)
        names, seed = list[int](), facts.seed
        for start in range(0, count, _PIECE_BLOCKS):
            names += traces(seed, asked.tokens, size, start, min(start + _PIECE_BLOCKS, count))
            seed = names[-1]
            yield
        if names:
            blocks = np.array(names, dtype=np.uint64)
            hit_tokens = min(asked.found_blocks, len(names)) * facts.block_tokens
            self._spaces.add(facts, asked.at_s, blocks, hit_tokens)
            yield
            yield from self._lint.look(asked, blocks)

    def _capacities(self) -> tuple[int, int]:
        return self._sizes

    def _measure(self, stats: StoreStats) -> None:
        own = [tier.capacity_bytes for tier in stats.tiers if tier.name in ("dram", "nvme")]
        self._sizes = (own[0], sum(own)) if own else (0, 0)

    async def _sampling(self) -> None:
        while True:
            await asyncio.sleep(FINE_S)
            self.sample()


def _ended(task: asyncio.Task[None]) -> None:
    """Nobody waits for the tasks: a fault of theirs ends insight, nothing else, and is said once."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("insight has stopped", exc_info=error)
