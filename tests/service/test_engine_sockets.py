"""The engine's HTTP server on a real socket, over a fake engine that produces as fast as it can."""

import asyncio
import contextlib
import json
import socket
import threading
from types import SimpleNamespace

import pytest
import uvicorn
from kvterrace.engine.request import Output, Receipt
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.backend import Backend

pytestmark = [pytest.mark.service, pytest.mark.timeout(60)]

MAX_UNREAD = 2_000
TEXT = "x" * 1_000  # a token's text: a socket's buffers are soon full


class Torrent:
    """Each request gets outputs until it is cancelled, or `tokens` of them."""

    alive = True
    max_prompt_tokens = 1_000
    connector = None

    def __init__(self) -> None:
        self.tokens = 10**9
        self.sent = 0
        self.cancelled: set[str] = set()
        self.ended = threading.Event()

    def submit(self, request, on_output) -> None:
        threading.Thread(target=self._produce, args=(request, on_output), daemon=True).start()

    def cancel(self, request_id) -> None:
        self.cancelled.add(request_id)

    def _produce(self, request, on_output) -> None:
        count = 0
        while request.request_id not in self.cancelled and count < self.tokens:
            on_output(Output(request.request_id, 0, (5,), TEXT))
            count += 1
            self.sent += 1
            if count % 16 == 0:
                threading.Event().wait(0.0005)
        reason = "length" if count == self.tokens else "cancelled"
        tokens = {"hbm": 0, "dram": 0, "nvme": 0, "peer": 0, "computed": 3}
        on_output(Output(request.request_id, 0, finish_reason=reason, receipt=Receipt(3, tokens, None, 0.0, 0.0)))
        self.ended.set()


@pytest.fixture
def engine() -> Torrent:
    return Torrent()


@pytest.fixture
async def port(engine):
    backend = Backend("fake", "1")
    tokenizer = SimpleNamespace(
        encode=lambda text, add_special: [1, 2, 3], vocab_size=9, eos_ids=frozenset(), token_bytes=lambda i: b"x"
    )
    backend.ready(SimpleNamespace(tokenizer=tokenizer, digest=bytes(32)), engine)
    app = make_app(backend, max_unread=MAX_UNREAD)
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    config = uvicorn.Config(app, http="httptools", log_config=None, access_log=False, timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    task = asyncio.create_task(server.serve(sockets=[bound]))
    while not server.started:  # noqa: ASYNC110  uvicorn has no event for it
        await asyncio.sleep(0.005)
    yield bound.getsockname()[1]
    server.should_exit = True
    await task
    bound.close()


async def post(port: int, raw: bytes, declared: int | None = None):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 16)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {declared or len(raw)}\r\n\r\n"
    writer.write(head.encode() + raw)
    return reader, writer


def stream_body() -> bytes:
    return json.dumps({"model": "fake", "prompt": "hi", "stream": True, "max_tokens": 10**6}).encode()


async def ended(engine: Torrent) -> None:
    assert await asyncio.to_thread(engine.ended.wait, 20)


async def test_a_client_that_never_reads_is_cut_off_while_others_are_served(engine, port):
    _, writer = await post(port, stream_body())
    await ended(engine)
    assert engine.cancelled
    engine.tokens = 3
    reader, other = await post(port, stream_body())
    text = await asyncio.wait_for(reader.readuntil(b"[DONE]"), 10)
    assert text.count(TEXT.encode()) == 3
    other.close()
    writer.close()


async def test_a_closed_connection_stops_the_engine(engine, port):
    reader, writer = await post(port, stream_body())
    await reader.readuntil(b"data: ")
    writer.transport.abort()
    await ended(engine)
    assert engine.cancelled


async def test_a_reader_slower_than_the_engine_gets_every_token(engine, port):
    engine.tokens = MAX_UNREAD
    reader, writer = await post(port, stream_body())
    text = b""
    while b"[DONE]" not in text[-100:]:
        part = await asyncio.wait_for(reader.read(1 << 16), 20)
        assert part, "the stream ended early"
        text += part
        await asyncio.sleep(0.001)
    assert text.count(b"x") >= MAX_UNREAD * len(TEXT)
    assert engine.cancelled == set()
    writer.close()


async def test_a_body_declared_too_large_is_refused_before_it_is_sent(engine, port):
    reader, writer = await post(port, b"{", declared=1 << 30)
    answer = await asyncio.wait_for(reader.read(), 10)  # to the end: the server closes the connection
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"body_too_large" in answer
    assert engine.sent == 0
    writer.close()
