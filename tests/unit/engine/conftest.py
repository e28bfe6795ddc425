"""A tiny engine: the real core, pool, scheduler and index; at the model's place a function that reads the KV pages.

FakeModel writes into each token's slot a number that depends on the whole prefix, and derives logits from every
number it finds in the context's pages: one wrong, stale or misplaced page changes the tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import torch
from kvterrace.connector.base import ConnectorStatus, LoadDone, Offer, SaveDone
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.core import EngineCore
from kvterrace.engine.pool import KVPool, make_pool_tensor
from kvterrace.engine.request import Output, Request, SamplingParams
from kvterrace.radix import PrefixIndex

VOCAB = 97
EOS = 96
PRIME = 8191


class FakeModel:
    """run(chunks) -> logits. Fails once when `fail_next` is set. Each token takes token_s of the clock."""

    def __init__(self, pool: KVPool, clock: "Clock"):
        self.pool, self.fail_next, self.chunks = pool, False, []
        self.clock, self.token_s = clock, 0.0

    def run(self, chunks):
        self.clock.now += self.token_s * sum(chunk.count for chunk in chunks)
        self.chunks.append([(c.sequence.key, c.sequence.computed, c.count) for c in chunks])
        if self.fail_next:
            self.fail_next = False
            raise RuntimeError("out of memory")
        rows = []
        size = self.pool.block_tokens
        for chunk in chunks:
            seq = chunk.sequence
            pages = seq.table.pages
            end = seq.computed + chunk.count
            for at in range(seq.computed, end):
                before = self._cell(pages[(at - 1) // size], (at - 1) % size) if at else 7
                value = (before * 31 + seq.tokens[at] * 17 + at) % PRIME
                self.pool.tensor[pages[at // size], ..., at % size, :] = value
            if chunk.final:
                context = torch.cat([self.pool.tensor[page, 0, 0, 0, :, 0] for page in pages[: -(-end // size)]])[:end]
                weights = torch.arange(1, end + 1) * 13 % 101
                rows.append(_logits(int((context.long() * weights).sum())))
        return torch.stack(rows) if rows else torch.empty(0, VOCAB)

    def _cell(self, page, offset):
        return int(self.pool.tensor[page, 0, 0, 0, offset, 0])


def _logits(state: int):
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(state)) * 3


class Letters:
    """Token i is one letter; EOS is 96."""

    eos_ids = frozenset({EOS})
    vocab_size = VOCAB

    def stream(self):
        return self

    def push(self, token_id):
        return chr(ord(" ") + token_id)

    def flush(self):
        return ""


class FakeConnector:
    """A store in a dict. Bytes are copied when an event is delivered, not when it was asked for, so that a page
    reused too early is seen. Kinds of events in `withheld` wait for release(); `ok_blocks` cuts loads short and
    fills the rest with garbage. Blocks from ordinal `nvme_from` on come from NVMe; each block takes `block_s` to
    compute. `prefetches` are those that stand, at most `max_prefetches`; hints go to `retained`, `observed` and
    `receipts`. `miss` says more about the reason."""

    def __init__(self, on_event: Callable[[], None] = lambda: None):
        self.tensor = None
        self.size = 4
        self.blocks: dict[bytes, torch.Tensor] = {}
        self.withheld: set[str] = set()
        self.queue: list[tuple[str, Callable[[], object], str]] = []
        self.log: list[tuple] = []
        self.ok_blocks: int | None = None
        self.reason = "never_seen"
        self.closed = False
        self.nvme_from = 10**9
        self.block_s = 0.0
        self.max_prefetches = 10**9
        self.prefetches: dict[str, tuple[bytes, int]] = {}
        self.retained: list[tuple[bytes, tuple]] = []
        self.observed: list[tuple[int, int, float]] = []
        self.hbm_reports: list[tuple[list, bool]] = []
        self.takes_changes = False
        self.saves: list[tuple[int, int, tuple]] = []
        self.receipts: list = []
        self.origins: list = []
        self.miss = None
        self._on_event = on_event
        self._cycles: dict[str, tuple[bytes, int, int]] = {}

    def fetch(self, request_id, tokens, hbm_blocks, max_blocks, origin=None):
        self.origins.append(origin)
        assert request_id not in self._cycles, "two cycles of one id"
        self.log.append(("fetch", request_id, hbm_blocks, max_blocks))
        assert request_id.rpartition("#")[0] not in self.prefetches, "a prefetch goes on beside its fetch"
        found = 0
        while hbm_blocks + found < max_blocks and tokens[: (hbm_blocks + found + 1) * self.size * 4] in self.blocks:
            found += 1
        self._cycles[request_id] = (tokens, hbm_blocks, found)
        reason = "" if hbm_blocks + found == max_blocks else self.reason

        def finish():
            if not found:
                del self._cycles[request_id]  # an empty offer ends the cycle
            return Offer(request_id, found, self._tiers(hbm_blocks, found), reason, self.miss if reason else None)

        self._push("offer", finish, request_id)

    def load(self, request_id, pages):
        tokens, start, found = self._cycles[request_id]
        assert len(pages) <= found
        self.log.append(("load", request_id, len(pages)))

        def finish():
            del self._cycles[request_id]
            ok = len(pages) if self.ok_blocks is None else min(self.ok_blocks, len(pages))
            for i, page in enumerate(pages):
                good = self.blocks[tokens[: (start + i + 1) * self.size * 4]] if i < ok else torch.tensor(666.0)
                self.tensor[page] = good
            reason = "" if ok == len(pages) else "corrupt"
            return LoadDone(request_id, ok, self._tiers(start, ok), reason, ok * self.block_s)

        self._push("load", finish, request_id)

    def decline(self, request_id):
        self.log.append(("decline", request_id))
        self._cycles.pop(request_id, None)

    def save(self, request_id, tokens, start, pages, retention=()):
        self.log.append(("save", request_id, start, len(pages)))
        self.saves.append((start, len(pages), tuple(retention)))
        pages = list(pages)

        def finish():
            for i, page in enumerate(pages):
                self.blocks[tokens[: (start + i + 1) * self.size * 4]] = self.tensor[page].clone()
            return SaveDone(request_id, start, len(pages), len(pages))

        self._push("save", finish, request_id)

    def retain(self, tokens, retention):
        self.log.append(("retain",))
        self.retained.append((tokens, tuple(retention)))

    def prefetch(self, request_id, tokens, hbm_blocks):
        self.log.append(("prefetch", request_id))
        assert request_id not in self.prefetches, "prefetched twice"
        if len(self.prefetches) >= self.max_prefetches:
            return False
        self.prefetches[request_id] = (tokens, hbm_blocks)
        return True

    def observe(self, first, tokens, seconds):
        self.observed.append((first, tokens, seconds))

    def hbm(self, changes, *, whole):
        if whole or self.takes_changes:
            self.hbm_reports.append((list(changes), whole))
            self.takes_changes = True
            return True
        return False

    def served(self, receipt):
        self.receipts.append(receipt)

    def cancel(self, request_id):
        self.log.append(("cancel", request_id))
        self.prefetches.pop(request_id, None)
        if not any(kind == "load" and ident == request_id for kind, _, ident in self.queue):
            self._cycles.pop(request_id, None)
        self.queue = [q for q in self.queue if not (q[0] == "offer" and q[2] == request_id)]

    def poll(self):
        ready = [q for q in self.queue if q[0] not in self.withheld]
        self.queue = [q for q in self.queue if q[0] in self.withheld]
        return [finish() for _, finish, _ in ready]

    def deliverable(self):
        return any(kind not in self.withheld for kind, _, _ in self.queue)

    def status(self):
        return ConnectorStatus(kind="fake", connected=True)

    def close(self):
        self.closed = True
        self.withheld = set()

    def count(self, verb):
        return sum(1 for entry in self.log if entry[0] == verb)

    def release(self, *kinds):
        self.withheld -= set(kinds or self.withheld)
        self._on_event()

    def _tiers(self, start, blocks):
        dram = max(0, min(blocks, self.nvme_from - start))
        counts = {"dram": dram * self.size, "nvme": (blocks - dram) * self.size}
        return {tier: count for tier, count in counts.items() if count}

    def _push(self, kind, finish, ident):
        self.queue.append((kind, finish, ident))
        self._on_event()


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Seen:
    """What one request's callback got, by sample."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    text: dict[int, str] = field(default_factory=dict)
    last: dict[int, Output] = field(default_factory=dict)
    outputs: list[Output] = field(default_factory=list)

    def __call__(self, output: Output) -> None:
        assert output.index not in self.last, "an output after the last one"
        self.outputs.append(output)
        self.tokens.setdefault(output.index, []).extend(output.token_ids)
        self.text[output.index] = self.text.get(output.index, "") + output.text
        if output.finish_reason is not None:
            self.last[output.index] = output

    @property
    def reasons(self) -> list[str]:
        return [output.finish_reason or "" for _, output in sorted(self.last.items())]

    @property
    def receipt(self):
        return self.last[0].receipt


class Rig:
    """The core with everything outside it in the test's hands. check() runs after every step."""

    def __init__(self, *, pages: int = 64, connector: FakeConnector | None = None, model_len: int = 4096, **config):
        config = {"model": "none", "block_tokens": 4, "max_step_tokens": 32, "max_running": 8} | config
        config.setdefault("kv_connector", "none")
        self.config = EngineConfig(**config)
        self.clock = Clock()
        tensor = make_pool_tensor((pages, 1, 2, 2, self.config.block_tokens, 2), torch.float32, torch.device("cpu"))
        index = PrefixIndex(bytes(32), block_tokens=self.config.block_tokens, clock=self.clock)
        self.pool = KVPool(tensor, index if self.config.prefix_cache else None)
        self.model = FakeModel(self.pool, self.clock)
        self.connector = connector
        if connector is not None:
            connector.tensor, connector.size = tensor, self.config.block_tokens
        self.core = EngineCore(
            self.pool,
            self.model.run,
            self.config,
            Letters(),
            max_model_len=model_len,
            connector=connector,
            clock=self.clock,
            entropy=lambda: 5,
        )
        self._count = 0

    def submit(
        self, prompt: Sequence[int], *, priority="interactive", name=None, retention=(), cache=True, **params
    ) -> Seen:
        self._count += 1
        params = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | params
        seen = Seen()
        sampling = SamplingParams(**params)
        request = Request(name or f"r{self._count}", tuple(prompt), sampling, priority, tuple(retention), cache)
        self.core.validate(request)
        self.core.submit(request, seen)
        return seen

    def step(self, times: int = 1) -> bool:
        busy = False
        for _ in range(times):
            busy = self.core.step()
            self.core.check()
        return busy

    def run(self, limit: int = 2000) -> None:
        """Until nothing more happens by itself. Fails if that takes too long or requests are left."""
        for _ in range(limit):
            if not self.step() and not (self.connector and self.connector.deliverable()):
                break
        assert self.core.idle, "requests are stuck"

    def one(self, prompt: Sequence[int], **params) -> Seen:
        seen = self.submit(prompt, **params)
        self.run()
        return seen

    def all_free(self) -> None:
        """Nothing is leased or private any more: every page is free or can be evicted."""
        self.core.check()
        assert self.pool.available == self.pool.num_pages


def words(seed: int, count: int) -> list[int]:
    """A prompt."""
    return torch.randint(0, EOS, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture
def rig():
    return Rig


@pytest.fixture
def store():
    return FakeConnector


@pytest.fixture
def prompt():
    return words


@pytest.fixture
def letters():
    return Letters()
