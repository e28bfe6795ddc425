"""One trace over an engine, its sidecar and another node, as a collector receives it."""

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import pytest
import torch
from kvterrace.connector import Model, Place, make_connector
from kvterrace.connector.tracing import make_tracer
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.loop import EngineLoop
from kvterrace.engine.model import LlamaModel, LoadedModel, ModelConfig, RopeConfig
from kvterrace.engine.model.linear import Linear
from kvterrace.engine.model.llama import Layer, Weights
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.backend import Backend
from kvterrace.kvstore.service.admin import fetch_scores
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import pack_tokens
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

pytestmark = [pytest.mark.service, pytest.mark.timeout(90)]

SIZES = ModelConfig("llama", 1, 16, 16, 2, 1, 8, 97, 512, 1e-5, RopeConfig(10000.0))
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PROMPT = [1 + n % 90 for n in range(100)]


class Collector:
    """Receives OTLP over HTTP. spans: by (service, name)."""

    def __init__(self):
        self.spans = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request):
        for resource in request.resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            who = names["service.name"], names.get("service.instance.id", "")
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self.spans.setdefault((*who, span.name), []).append(span)

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector():
    made = Collector()
    yield made
    made.close()


class Tokenizer:
    vocab_size = SIZES.vocab
    eos_ids = frozenset({0})

    def stream(self):
        return SimpleNamespace(push=lambda token: "x", flush=lambda: "")

    def token_bytes(self, token_id):
        return b"x"


def loaded():
    generator = torch.Generator().manual_seed(11)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    size, qkv = SIZES.hidden, (SIZES.heads + 2 * SIZES.kv_heads) * SIZES.head_dim
    layer = Layer(
        torch.ones(size),
        Linear(normal(qkv, size)),
        Linear(normal(size, SIZES.heads * SIZES.head_dim)),
        torch.ones(size),
        Linear(normal(2 * SIZES.intermediate, size)),
        Linear(normal(size, SIZES.intermediate)),
    )
    weights = Weights(normal(SIZES.vocab, size), (layer,), torch.ones(size), Linear(normal(SIZES.vocab, size)))
    return LoadedModel(SIZES, LlamaModel(SIZES, weights), Tokenizer(), b"d" * 32, "tiny")


def engine_on(address, otlp=None):
    """An engine whose store is that sidecar."""
    config = EngineConfig(model="none", kv_pool_pages=64, kv_connector="sidecar", kv_fetch_deadline_s=5.0)
    place, model = Place(address=address), Model(b"d" * 32, label="tiny")
    engine = EngineLoop(
        loaded(),
        config,
        lambda pool, on_event: make_connector("sidecar", pool, on_event, model=model, place=place),
        tracer=make_tracer(otlp, "kvterrace-engine", instance="tiny"),
    )
    engine.start()
    return engine


async def ask(engine, **headers):
    backend = Backend("tiny", "1")
    backend.ready(SimpleNamespace(tokenizer=Tokenizer(), digest=bytes(32)), engine)
    transport = httpx.ASGITransport(app=make_app(backend))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 3, "temperature": 0, "ignore_eos": True}
        answer = await http.post("/v1/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()


async def known_to(address, label, node, tokens):
    """Wait until that node is known for a whole prompt."""
    request = pb.ScoreRequest(namespace=label, tokens=pack_tokens(tokens), deadline_s=1.0)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        reply = await fetch_scores(address, request, timeout_s=5.0)
        if any(each.node == node and each.tokens >= len(tokens) // 16 * 16 for each in reply.nodes):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{node} is not known for it: {reply}")


async def test_one_trace_goes_through_engine_sidecar_and_peer(collector, node):
    a = node("a", "--dram", "32MiB", "--otlp", collector.url)
    b = node("b", "--dram", "32MiB", "--otlp", collector.url)
    first = engine_on(a.address)
    await ask(first)
    await asyncio.to_thread(first.close)
    await known_to(a.address, "tiny", "a", PROMPT)
    second = engine_on(b.address, collector.url)
    answer = await ask(second, traceparent=f"00-{TRACE_ID}-b7ad6b7169203331-01")
    assert answer["usage"]["kvterrace"]["tokens"]["peer"] == 96, answer
    await asyncio.to_thread(second.close)  # sends what is left, as a stop of the nodes does
    await asyncio.gather(*(asyncio.to_thread(each.close) for each in (a, b)))

    (request,) = collector.spans["kvterrace-engine", "tiny", "engine request"]
    (acquire,) = collector.spans["kvterrace-sidecar", "b", "acquire"]
    (fetch,) = collector.spans["kvterrace-sidecar", "b", "peer"]
    (lend,) = collector.spans["kvterrace-sidecar", "a", "lend"]
    chain = [request, acquire, fetch, lend]
    assert request.parent_span_id.hex() == "b7ad6b7169203331"
    assert [span.parent_span_id for span in chain[1:]] == [span.span_id for span in chain[:-1]]
    everything = [span for spans in collector.spans.values() for span in spans]
    assert {span.trace_id.hex() for span in everything} == {TRACE_ID}, "and nothing else was traced"
    parts = {name for service, _, name in collector.spans if service == "kvterrace-engine"}
    assert parts >= {"engine request", "queue", "fetch", "load", "prefill", "decode"}
    assert collector.spans["kvterrace-sidecar", "b", "directory"]
    told = {each.key: each.value for each in request.attributes}
    assert told["kvterrace.tokens.peer"].int_value == 96
    assert told["kvterrace.request_id"].string_value.startswith("cmpl-")
