"""Full queues, failing engines, leaving and slow clients: the right answer, and nothing left behind."""

import asyncio
import logging
import threading

import httpx
import pytest
from kvterrace.engine.request import Output, QueueFull, RequestRefused
from kvterrace.engine.server import body as body_module
from kvterrace.engine.server import job as job_module
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.backend import Backend
from kvterrace.engine.server.sse import send_events

pytestmark = pytest.mark.unit

CHAT = "/v1/chat/completions"
BODY = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}


async def eventually(condition):
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  the fake engine is seen from outside
            await asyncio.sleep(0.005)


async def test_a_full_queue_is_a_429_that_says_when(chat, engine):
    engine.refuse, engine.accept = QueueFull(2.2), 0
    for stream in (False, True):
        response = await chat(stream=stream)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "3"
        assert response.json()["error"]["code"] == "queue_full"
        assert response.json()["error"]["type"] == "rate_limit_error"


async def test_half_a_batch_refused_cancels_the_other_half(complete, engine):
    engine.refuse, engine.accept, engine.script = QueueFull(0.1), 2, None
    response = await complete(prompt=["a", "b", "c"])
    assert response.status_code == 429
    assert response.headers["retry-after"] == "1"
    assert engine.cancelled == [request.request_id for request in engine.requests]
    assert len(engine.cancelled) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [("queue_timeout", 429, "queue_timeout"), ("error", 500, "engine_error"), ("cancelled", 503, "cancelled")],
)
async def test_an_early_failure_has_its_own_status_even_when_streaming(chat, engine, stream, reason, status, code):
    engine.script = lambda r: [Output(r.request_id, 0, finish_reason=reason, error="boom" * (reason == "error"))]
    response = await chat(stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert ("retry-after" in response.headers) == (status != 500)


async def test_a_failure_in_the_middle_of_a_stream_is_its_last_event(raw_client, engine, read_events):
    engine.script = None
    client = raw_client(CHAT, {**BODY, "stream": True, "n": 2})
    task = asyncio.create_task(client.run())
    await eventually(lambda: engine.requests)
    request_id = engine.requests[0].request_id
    engine.emit(Output(request_id, 0, (97,), "a"))
    await eventually(lambda: b'"a"' in client.body)
    engine.emit(Output(request_id, 0, finish_reason="error", error="a step failed"))
    await task
    events = read_events(client.body.decode(), done=False)
    assert events[-1]["error"]["message"] == "a step failed"
    assert engine.cancelled == [request_id]  # the other sample is not computed for nobody


async def test_a_refusal_by_the_engine_is_a_400(chat, engine):
    engine.refuse, engine.accept = RequestRefused("no pages"), 0
    response = await chat()
    assert response.status_code == 400
    assert "no pages" in response.json()["error"]["message"]


async def test_a_bug_is_a_counted_500_without_a_traceback(chat, engine, http):
    engine.refuse, engine.accept = KeyError("secret detail"), 0
    response = await chat()
    assert response.status_code == 500
    assert response.json()["error"]["message"] == "Internal error."
    assert "secret" not in response.text
    assert 'route="/v1/chat/completions",status="500"} 1.0' in (await http.get("/metrics")).text


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("began", [False, True])
async def test_a_client_that_leaves_cancels_its_request_at_once(raw_client, engine, http, stream, began):
    engine.script = None
    client = raw_client(CHAT, {**BODY, "stream": stream})
    task = asyncio.create_task(client.run())
    await eventually(lambda: engine.requests)
    request_id = engine.requests[0].request_id
    if began:
        engine.emit(Output(request_id, 0, (97,), "a"))
        await asyncio.sleep(0.02)
    client.leave()
    async with asyncio.timeout(1):
        await task
    assert engine.cancelled == [request_id]
    engine.emit(Output(request_id, 0, (98,), "b"), Output(request_id, 0, finish_reason="cancelled"))  # nobody minds
    assert "kvterrace_engine_http_disconnects_total 1.0" in (await http.get("/metrics")).text


async def test_a_client_that_left_while_its_prompt_became_tokens_is_noticed(raw_client, engine):
    engine.script = None
    client = raw_client("/v1/completions", {"model": "fake", "prompt": "x" * 2_400})
    task = asyncio.create_task(client.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    client.leave()
    async with asyncio.timeout(5):
        await task
    assert engine.cancelled == [request.request_id for request in engine.requests]


async def test_a_finished_request_is_not_cancelled(chat, engine):
    await chat()
    await chat(stream=True)
    assert engine.cancelled == []


async def test_a_slow_reader_gets_joined_events(raw_client, engine, make_receipt, read_events):
    engine.script = None
    client = raw_client(CHAT, {**BODY, "stream": True})
    task = asyncio.create_task(client.run(reads=False))
    await eventually(lambda: engine.requests)
    request = engine.requests[0]
    engine.emit(Output(request.request_id, 0, (97,), "a"))
    await eventually(lambda: client.status)
    engine.emit(*[Output(request.request_id, 0, (98,), "b") for _ in range(500)])
    engine.emit(Output(request.request_id, 0, (0,), "", "stop", receipt=make_receipt(request)))
    client.read()
    await task
    events = read_events(client.body.decode())
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == "a" + "b" * 500
    assert len(events) < 10


async def test_a_reader_too_slow_is_cut_off_and_its_request_cancelled(backend, engine, raw_client, read_events):
    engine.script = None
    client = raw_client(CHAT, {**BODY, "stream": True, "logprobs": True, "top_logprobs": 3})
    client._app = make_app(backend, max_unread=100)
    task = asyncio.create_task(client.run(reads=False))
    await eventually(lambda: engine.requests)
    request_id = engine.requests[0].request_id
    engine.emit(Output(request_id, 0, (97,), "a"))
    await eventually(lambda: client.status)
    engine.emit(*[Output(request_id, 0, (98,), "b") for _ in range(24)])
    await asyncio.sleep(0.02)
    assert engine.cancelled == []  # 24 tokens of 4 each
    engine.emit(*[Output(request_id, 0, (98,), "b") for _ in range(4)])
    await eventually(lambda: engine.cancelled == [request_id])
    client.read()
    await task
    assert read_events(client.body.decode(), done=False)[-1]["error"]["code"] == "slow_reader"


async def test_a_send_that_never_ends_is_given_up(caplog):
    async def parts():
        yield [b"data: 1\n\n"]

    sent = []

    async def send(message):
        sent.append(message["type"])
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    with caplog.at_level(logging.WARNING):
        await send_events(send, parts(), stall_s=0.01)
    assert sent == ["http.response.start", "http.response.body"]
    assert "read nothing" in caplog.text


async def test_an_engine_that_dies_silently_ends_the_wait(chat, engine, monkeypatch):
    monkeypatch.setattr(job_module, "ALIVE_CHECK_S", 0.02)
    engine.script = None
    task = asyncio.create_task(chat())
    await eventually(lambda: engine.requests)
    await asyncio.sleep(0.05)
    assert not task.done()
    engine.alive = False
    response = await task
    assert response.status_code == 500
    assert (await chat()).status_code == 503


async def test_while_stopping_new_requests_are_refused_and_old_ones_end(
    chat, engine, backend, make_receipt, monkeypatch
):
    monkeypatch.setattr(job_module, "ALIVE_CHECK_S", 0.02)
    engine.script = None
    task = asyncio.create_task(chat())
    await eventually(lambda: engine.requests)
    backend.stopping()
    engine.alive = False  # a draining loop refuses, and says that it is not alive
    response = await chat()
    assert response.status_code == 503
    assert "retry-after" in response.headers
    await asyncio.sleep(0.05)
    request = engine.requests[0]
    engine.emit(Output(request.request_id, 0, (97,), "a", "stop", receipt=make_receipt(request)))
    assert (await task).json()["choices"][0]["message"]["content"] == "a"


async def test_before_the_model_is_loaded_everything_says_so():
    transport = httpx.ASGITransport(app=make_app(Backend("fake", "1")))
    async with httpx.AsyncClient(transport=transport, base_url="http://t") as http:
        for call in (http.post(CHAT, json=BODY), http.post("/v1/completions", content=b"{"), http.get("/v1/models")):
            response = await call
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "loading"
            assert "retry-after" in response.headers


async def test_bodies_being_read_are_bounded_together(raw_client, backend, monkeypatch):
    monkeypatch.setattr(body_module.BodyBudget.__init__, "__defaults__", (1000,))
    app = make_app(backend)
    never = asyncio.Event()

    async def half(send):
        messages = [{"type": "http.request", "body": b"{" + b" " * 800, "more_body": True}]

        async def receive():
            if messages:
                return messages.pop()
            await never.wait()
            return {"type": "http.disconnect"}

        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b"", "root_path": ""}
        await app(scope, receive, send)

    sent = []

    async def send(message):
        sent.append(message)

    first = asyncio.create_task(half(send))
    await asyncio.sleep(0.02)
    assert sent == []
    await half(send)
    assert sent[0]["status"] == 429
    never.set()
    await first  # its share is free again:
    sent.clear()
    client = raw_client(CHAT, BODY)
    client._app = app
    await client.run()
    assert client.status == 200


async def test_a_body_that_never_arrives_is_given_up(app, monkeypatch):
    monkeypatch.setattr(body_module, "READ_TIMEOUT_S", 0.02)
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": [], "query_string": b"", "root_path": ""}
    await app(scope, asyncio.Event().wait, send)
    assert sent[0]["status"] == 408


async def test_a_long_prompt_becomes_tokens_off_the_event_loop(complete, backend):
    threads = []
    tokenizer = backend.serving().loaded.tokenizer
    plain = type(tokenizer).encode

    def encode(text, *, add_special):
        threads.append(threading.current_thread())
        return plain(tokenizer, text, add_special=add_special)

    tokenizer.encode = encode
    await complete(prompt="x" * 2_400)
    await complete(prompt="short")
    assert threads[0] is not threading.main_thread()
    assert threads[1] is threading.main_thread()
