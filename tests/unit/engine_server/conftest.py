"""A server over a fake engine: outputs are scripted or sent by hand, from another thread as in the real one."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import httpx
import pytest
from kvterrace.connector.base import ConnectorStatus, Miss
from kvterrace.engine.forecast import Forecast
from kvterrace.engine.receipts import Receipts
from kvterrace.engine.request import Output, Receipt, Request
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.backend import Backend
from kvterrace.engine.stats import EngineStats

EOS = 0


class FakeTokenizer:
    """One token a character; its id is the code point."""

    vocab_size = 10_000
    eos_ids = frozenset({EOS})

    def encode(self, text, *, add_special):
        return ([1] if add_special and text else []) + [ord(c) for c in text]

    def token_bytes(self, token_id):
        return chr(token_id).encode()

    def token_text(self, token_id):
        return chr(token_id)

    def written(self, ids):
        return "".join(map(chr, ids))

    def apply_chat(self, messages, *, add_generation_prompt=True):
        if messages[0]["role"] == "assistant":
            raise ValueError("conversations begin with the user")
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + ("" if add_generation_prompt else "|")


class FakeEngine:
    """alive, max_prompt_tokens, refuse: set by tests. script: outputs of a request, sent at once; None: by emit()."""

    def __init__(self):
        self.alive = True
        self.max_prompt_tokens = 2_500
        self.block_tokens = 16
        self.receipts = Receipts(4)
        self.forecast: Forecast | None = None
        self.asked: list[list[int]] = []
        self.connector = SimpleNamespace(status=lambda: ConnectorStatus("sidecar", connected=True))
        self.refuse: Exception | None = None
        self.accept = 10**9
        self.script: Callable[[Request], list[Output]] | None = hello
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.counted = EngineStats()
        self._callbacks = {}

    def submit(self, request, on_output):
        if self.refuse is not None and len(self.requests) >= self.accept:
            raise self.refuse
        self.requests.append(request)
        self._callbacks[request.request_id] = on_output
        if self.script is not None:
            outputs = self.script(request)
            threading.Thread(target=lambda: [on_output(output) for output in outputs]).start()

    def emit(self, *outputs: Output):
        thread = threading.Thread(target=lambda: [self._callbacks[o.request_id](o) for o in outputs])
        thread.start()
        thread.join()

    def cancel(self, request_id):
        self.cancelled.append(request_id)

    def stats(self):
        return self.counted

    def why(self, prompt_ids):
        self.asked.append(list(prompt_ids))
        return self.forecast

    def clear_hbm(self):
        return 7


def receipt(request: Request, hbm=2, dram=3) -> Receipt:
    count = len(request.prompt_ids)
    tokens = {"hbm": hbm, "dram": dram, "nvme": 0, "peer": 0, "computed": count - hbm - dram}
    miss = Miss("never_seen", 5)
    return Receipt(count, tokens, miss, 0.25, 0.125, 0.5, request.request_id, 0.75, 0.0625, 1e9)


def hello(request: Request) -> list[Output]:
    """Each sample says "Hi" and its number, then ends with EOS."""
    outputs = []
    for index in range(request.params.n):
        text = f"Hi{index}"
        outputs += [Output(request.request_id, index, (ord(c),), c) for c in text]
        outputs.append(Output(request.request_id, index, (EOS,), "", "stop", receipt=receipt(request)))
    return outputs


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def backend(engine) -> Backend:
    backend = Backend("fake", "1.2.3")
    backend.ready(SimpleNamespace(tokenizer=FakeTokenizer(), digest=bytes(range(32))), engine)
    return backend


@pytest.fixture
def app(backend):
    return make_app(backend)


@pytest.fixture
async def http(app) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@pytest.fixture
def chat(http):
    """Posts a chat; keyword arguments are fields of the body."""

    async def post(**fields):
        body = {"model": "fake", "messages": [{"role": "user", "content": "hello"}], **fields}
        return await http.post("/v1/chat/completions", json=body)

    return post


@pytest.fixture
def complete(http):
    async def post(**fields):
        return await http.post("/v1/completions", json={"model": "fake", "prompt": "hello", **fields})

    return post


@pytest.fixture
def read_events():
    """The events of a stream's body as objects; its last line must be [DONE] unless told otherwise."""

    def read(text: str, *, done: bool = True):
        parts = [part for part in text.split("\n\n") if part]
        assert all(part.startswith("data: ") for part in parts)
        payloads = [part.removeprefix("data: ") for part in parts]
        assert (payloads[-1] == "[DONE]") is done
        return [json.loads(payload) for payload in payloads if payload != "[DONE]"]

    return read


@pytest.fixture
def make_receipt():
    return receipt


class RawClient:
    """One POST at the ASGI level, to leave in the middle of it or to read slowly."""

    def __init__(self, app, path, body):
        self.status = None
        self.body = b""
        self._messages = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
        self._app = app
        self._path = path
        self._left = None
        self._may_send = None

    async def run(self, *, reads: bool = True):
        self._left = asyncio.Event()
        self._may_send = asyncio.Event()
        if reads:
            self._may_send.set()
        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": self._path, "raw_path": b"",
                 "query_string": b"", "headers": [], "client": ("127.0.0.1", 1), "server": ("t", 80), "scheme": "http",
                 "root_path": "", "asgi": {"version": "3.0", "spec_version": "2.3"}}  # fmt: skip
        await self._app(scope, self._receive, self._send)

    def leave(self):
        self._left.set()
        self._may_send.set()

    def read(self):
        self._may_send.set()

    async def _receive(self):
        if self._messages:
            return self._messages.pop()
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            await self._may_send.wait()
            self.body += message.get("body", b"")


@pytest.fixture
def raw_client(app):
    return lambda path, body: RawClient(app, path, body)
