"""`kvterrace load` against the bundled engine's own HTTP server: its receipts are summed by tier."""

import asyncio
import contextlib
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import uvicorn
from kvterrace.engine.request import Output, QueueFull, Receipt
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.backend import Backend

pytestmark = [pytest.mark.service, pytest.mark.timeout(60)]


class Tokenizer:
    """A token a word."""

    vocab_size = 10_000
    eos_ids = frozenset({0})

    def encode(self, text, *, add_special):
        return [1 + sum(map(ord, word)) % 5000 for word in text.split()]

    def token_bytes(self, token_id):
        return b" word"

    def apply_chat(self, messages):
        return " ".join(f"<{each['role']}> {each['content']}" for each in messages)


class Engine:
    """Knows 16-token beginnings that it has seen; the first of two halves is in HBM, the other in DRAM."""

    alive = True
    max_prompt_tokens = 2_000
    connector = None

    def __init__(self):
        self.seen = set()
        self.full = 0  # so many requests are refused

    def submit(self, request, on_output):
        if self.full:
            self.full -= 1
            raise QueueFull(1.0)
        threading.Thread(target=self._answer, args=(request, on_output), daemon=True).start()

    def cancel(self, request_id):
        pass

    def _answer(self, request, on_output):
        ids, known = tuple(request.prompt_ids), 0
        for end in range(16, len(ids), 16):
            known = end if ids[:end] in self.seen and known == end - 16 else known
            self.seen.add(ids[:end])
        half = known // 2
        tokens = {"hbm": half, "dram": known - half, "nvme": 0, "peer": 0, "computed": len(ids) - known}
        last = request.params.max_tokens - 1
        for number in range(last + 1):
            time.sleep(0.005)
            ending = {"finish_reason": "length", "receipt": Receipt(len(ids), tokens, None, 0.0, 0.0)}
            on_output(Output(request.request_id, 0, (5,), " word", **(ending if number == last else {})))


@pytest.fixture
def engine():
    return Engine()


@pytest.fixture
async def engine_url(engine):
    backend = Backend("bundled", "1")
    backend.ready(SimpleNamespace(tokenizer=Tokenizer(), digest=bytes(32)), engine)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    config = uvicorn.Config(make_app(backend), http="httptools", log_config=None, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.005)
    yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    server.should_exit = True
    await task
    bound.close()


async def test_receipts_of_the_bundled_engine_sum_to_the_prompts(run, engine, engine_url):
    report = await run(at=engine_url, requests=10, prompt_tokens=128, shared=0.75, ignore_eos=True)
    tally = report.load
    assert report.model == "bundled"
    assert (tally.ok, tally.tokens.output) == (10, 30)
    assert tally.tokens.receipts == 10
    assert tally.tokens.unequal == 0
    assert tally.tokens.tiers.total() == tally.tokens.prompt
    assert tally.tokens.tiers["hbm"] + tally.tokens.tiers["dram"] == tally.tokens.cached
    assert tally.tokens.cached >= 8 * 80  # two groups' beginnings are new once each
    assert (tally.latencies.hit_ttft_s.count, tally.latencies.miss_ttft_s.count) == (8, 2)


async def test_the_engines_full_queue_is_a_rejection(run, engine, engine_url):
    await run(at=engine_url, alone=0, requests=1)

    def fill(runner):
        if runner.phase == "load" and not engine.full and not runner.tally.statuses["rejected"]:
            engine.full = 3

    report = await run(at=engine_url, alone=0, requests=30, rate=60.0, watch=fill)
    assert report.load.statuses == {"ok": 27, "rejected": 3}
    assert next(iter(report.load.errors)).startswith("HTTP 429: Too many requests are waiting")
