"""Replay: a trace through the store's own index, policies, cost model and admission, on the trace's clock, no bytes.

One request at a time does what an engine and the store do for it: acquire what is stored of the prompt (what only NVMe
has is brought up to DRAM, if loading is worth it), compute the rest, store that, root first, as much as can be made to
fit, and write to NVMe what the demoter would. Its steps follow Session, Promoter and Demoter, block for block; what
those do in the background is done here by the time the next request comes: no queue overflows, no device fails.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ...radix import EvictionPolicy, Match
from ..placement import AdmitAll, BlockFacts
from ..residents import ABSENT, WRITTEN
from .outcome import Outcome, Setup
from .shelf import Shelf
from .trace import Request, Trace


class Replay:
    """Feed it requests with `step`, in order of time; `outcome` is up to date after each."""

    def __init__(self, setup: Setup) -> None:
        self.outcome = Outcome()
        self._setup = setup
        self._now = 0.0
        self._cost = setup.speeds.model()
        self._admission = None if setup.admission is AdmitAll else setup.admission()  # None: no need to ask
        self._block_seconds: list[float] = []
        self._block_load_s = self._cost.load_s("nvme", setup.block_bytes)
        tiered = setup.nvme_blocks > 0
        self.dram = Shelf("dram", setup.dram_blocks, policy=self._policy, clock=self._clock, marked=tiered)
        self.nvme = Shelf("nvme", setup.nvme_blocks, policy=self._policy, clock=self._clock)

    def step(self, request: Request) -> tuple[int, int]:
        """One request, from acquire to commit; the blocks it found in DRAM, and those it got from NVMe after them."""
        self._now = request.at_s
        tiered = self._setup.nvme_blocks > 0
        index = self.dram.index(request.space)
        match = index.match(request.blocks)
        found = len(match)
        if tiered:
            match = self._promote(request, match)
        promoted = len(match) - found
        if len(match):
            index.touch(match.blocks)
        if tiered:
            self._touch_below(request)
            self._offer(request, match)
        if len(match) < request.count:
            match = self._save(request, match)
        self._count(request, found, promoted)
        return found, promoted

    def check(self) -> None:
        """AssertionError unless the tiers recount well and every token was either hit or computed. For tests."""
        self.dram.check()
        self.nvme.check()
        done = self.outcome
        assert done.hit_tokens.total() + done.computed_tokens == done.input_tokens, "tokens are lost"

    def _promote(self, request: Request, match: Match) -> Match:
        """Bring up what NVMe has beyond DRAM's match, as much as fits; what DRAM has then."""
        setup = self._setup
        first = len(match)
        more = len(self.nvme.match(request.space, request.blocks)) - first
        if more <= 0:
            return match
        tokens = setup.block_tokens
        if not self._cost.worth_loading("nvme", first * tokens, more * tokens, more * setup.block_bytes):
            self.outcome.slower_to_load_blocks += more
            return match
        match = self.dram.add(request.space, request.blocks, match, min(more, setup.max_in_flight))
        came = match.blocks[first:]
        self.dram.col(request.space, "below")[came] = ABSENT if setup.exclusive else WRITTEN
        if setup.exclusive:
            self.nvme.drop_tips(request.space, request.blocks[: 4 * len(match)], first)
        self.outcome.move("nvme", "dram", len(came), setup.block_bytes)
        return match

    def _touch_below(self, request: Request) -> None:
        match = self.nvme.match(request.space, request.blocks)
        if len(match):
            self.nvme.index(request.space).touch(match.blocks)

    def _save(self, request: Request, match: Match) -> Match:
        """Store what was computed, as much as fits; what is stored of the prompt then."""
        first, setup = len(match), self._setup
        match = self.dram.add(request.space, request.blocks, match, request.count - first)
        self.outcome.written_bytes["dram"] += (len(match) - first) * setup.block_bytes
        if setup.nvme_blocks and len(match) > first:
            if setup.exclusive:
                self._cool()
            self._offer(request, match)
        return match

    def _offer(self, request: Request, match: Match) -> None:
        """Inclusive: write blocks of DRAM's match that have no copy on NVMe, root first, those that are admitted."""
        if self._setup.exclusive or not len(match):
            return
        absent = self.dram.col(request.space, "below")[match.blocks] == ABSENT
        first = int(absent.argmax())
        if absent[first]:
            end = self._admitted(request.space, match, first)
            if end > first:
                self._write(request.space, request.blocks, match.blocks[:end])

    def _cool(self) -> None:
        """Exclusive: write the coldest runs and let them go, until a share of DRAM is free."""
        while (victims := self.dram.next_victims(self._setup.spare_blocks)) is not None:
            space, run = victims
            index = self.dram.index(space)
            path, blocks = index.path(int(run[0])), index.tokens_to(int(run[0]))
            if self._admitted(space, Match(path, len(path)), len(path) - len(run)) == len(path):
                self._write(space, blocks, path)
            self.dram.evict(space, len(run))

    def _admitted(self, space: int, match: Match, first: int) -> int:
        """The end of the leading run of blocks from `first` on that are worth writing."""
        admission = self._admission
        if admission is None:
            return len(match)
        size, fill = self._setup.block_bytes, self.nvme.used_blocks / self.nvme.capacity_blocks
        for depth, hits in enumerate(self.dram.col(space, "hits")[match.blocks[first:]].tolist(), first):
            if not admission.admit(BlockFacts(hits, depth, size, fill, self._block_s(depth), self._block_load_s)):
                self.outcome.refused["not_admitted"] += len(match) - depth
                return depth
        return len(match)

    def _write(self, space: int, blocks: bytes, path: NDArray[np.int32]) -> None:
        """Write a path's blocks to NVMe that it has not, as many as fit, and mark which of them it has."""
        blocks = blocks[: 4 * len(path)]
        have = self.nvme.match(space, blocks)
        done = self.nvme.add(space, blocks, have, len(path) - len(have))
        marks = self.dram.col(space, "below")
        marks[path[: len(done)]] = WRITTEN
        marks[path[len(done) :]] = ABSENT
        if len(done) < len(path):
            self.outcome.refused["full"] += len(path) - len(done)
        self.outcome.move("dram", "nvme", len(done) - len(have), self._setup.block_bytes)

    def _count(self, request: Request, found: int, promoted: int) -> None:
        hit = min((found + promoted) * self._setup.block_tokens, request.input_tokens)
        done = self.outcome
        done.count(request, self._setup, found, promoted)
        for shelf in (self.dram, self.nvme):
            done.evictions[shelf.name] = shelf.evictions
            done.evictions_reused[shelf.name] = shelf.evictions_reused
        if self._setup.speeds.prefill_tokens_per_s:
            load_s = self._cost.load_s("dram", (found + promoted) * self._setup.block_bytes)
            load_s += self._cost.load_s("nvme", promoted * self._setup.block_bytes)
            done.load_s += load_s
            done.saved_s += self._cost.compute_s(0, hit) - load_s
            done.compute_s += self._cost.compute_s(hit, request.input_tokens - hit)

    def _block_s(self, ordinal: int) -> float:
        """Seconds that computing the block of this ordinal takes; 0.0 = not known."""
        known, tokens = self._block_seconds, self._setup.block_tokens
        while len(known) <= ordinal:
            known.append(self._cost.compute_s(len(known) * tokens, tokens))
        return known[ordinal]

    def _policy(self) -> EvictionPolicy:
        return self._setup.policy(self._block_s)

    def _clock(self) -> float:
        return self._now


def replay(trace: Trace, setup: Setup, progress: Callable[[int], None] = lambda requests: None) -> Outcome:
    """Run a whole trace. progress: called now and then with the number of requests done."""
    run = Replay(setup)
    for number, request in enumerate(trace.requests):
        if number % 256 == 0:
            progress(number)
        run.step(request)
    progress(len(trace.requests))
    return run.outcome
