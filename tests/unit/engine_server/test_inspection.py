"""Receipts by id and POST /admin/why: what operators see, and nobody else."""

import hashlib

import httpx
import pytest
from kvterrace.connector.base import Miss
from kvterrace.engine.config import load_config
from kvterrace.engine.forecast import Forecast
from kvterrace.engine.request import Output, Receipt, Request
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.guard import make_access

pytestmark = pytest.mark.unit

CHAT = {"model": "fake", "messages": [{"role": "user", "content": "hello"}]}
MISS = Miss("diverged", 21, "nvme", 12.3456, 60.0, ("weights",), cached=b"s\0\0\0")
TOLD = {
    "reason": "diverged",
    "token": 21,
    "tier": "nvme",
    "gone_s": 12.346,
    "kept_s": 60.0,
    "fields": ["weights"],
}


def client_of(app, peer="127.0.0.1"):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, client=(peer, 5)), base_url="http://t")


@pytest.fixture
def kept(engine, make_receipt):
    """Receipts of four requests."""
    for name in ("chatcmpl-1", "cmpl-2/0", "cmpl-2/1", "chatcmpl-3"):
        engine.receipts.add(make_receipt(Request(name, tuple(range(11)))))


async def test_the_last_receipts_come_newest_first(http, kept):
    body = (await http.get("/admin/receipts", params={"limit": 2})).json()
    assert [each["request_id"] for each in body["receipts"]] == ["chatcmpl-3", "cmpl-2/1"]
    assert body["total"] == 4
    body = (await http.get("/admin/receipts", params={"id": "cmpl-2"})).json()
    assert [each["request_id"] for each in body["receipts"]] == ["cmpl-2/1", "cmpl-2/0"]
    assert (await http.get("/admin/receipts", params={"reason": "evicted"})).json()["receipts"] == []


async def test_a_receipt_is_found_by_the_id_that_its_client_saw(http, kept):
    found = (await http.get("/admin/receipts/chatcmpl-1")).json()
    assert found.pop("time_s") > 1e9
    assert found == {
        "request_id": "chatcmpl-1",
        "prompt_tokens": 11,
        "tokens": {"hbm": 2, "dram": 3, "nvme": 0, "peer": 0, "computed": 6},
        "miss_reason": "never_seen",
        "miss": {"reason": "never_seen", "token": 5, "tier": "", "gone_s": 0.0, "kept_s": 0.0, "fields": []},
        "queue_wait_s": 0.25,
        "cache_wait_s": 0.125,
        "saved_s": 0.5,
        "ttft_s": 0.75,
        "computed_s": 0.0625,
    }
    assert (await http.get("/admin/receipts/cmpl-2/0")).json()["request_id"] == "cmpl-2/0"
    assert (await http.get("/admin/receipts/cmpl-2")).json()["request_id"] == "cmpl-2/1"
    missing = await http.get("/admin/receipts/chatcmpl-9")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "no_such_receipt"


@pytest.mark.parametrize("limit", ["0", "-1", "many", "100000"])
async def test_a_limit_that_makes_no_sense_is_one_line(http, limit):
    response = await http.get("/admin/receipts", params={"limit": limit})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "limit"


async def test_no_receipt_of_a_model_that_is_not_there_yet(http, backend):
    backend.stopping()
    assert (await http.get("/admin/receipts")).status_code == 503


# --- why


@pytest.fixture
def forecast(engine):
    tokens = {"hbm": 8, "dram": 8, "nvme": 0, "peer": 0, "computed": 9}
    engine.forecast = Forecast(tokens, MISS, 1.5, 0.25, "sidecar")
    return engine.forecast


async def test_why_tells_tiers_the_miss_and_the_text_around_the_break(http, engine, forecast):
    text = "what would this one have hit, and why not?"
    body = (await http.post("/admin/why", json={"prompt": text})).json()
    assert engine.asked == [[1, *map(ord, text)]]
    assert body == {
        "model": "fake",
        "prompt_tokens": len(text) + 1,
        "tokens": forecast.tokens,
        "miss": TOLD,
        "break": {"token": 21, "before": "\x01" + text[:20], "yours": text[20:], "cached": "s"},
        "compute_s": 1.5,
        "load_s": 0.25,
        "store": "sidecar",
    }


async def test_why_takes_the_body_of_the_very_call(http, engine, forecast):
    body = {**CHAT, "max_tokens": 5, "temperature": 0.2, "stream": True, "kvterrace": {"retention": []}}
    assert (await http.post("/admin/why", json=body)).status_code == 200
    assert (await http.post("/admin/why", json={"prompt": [5, 6, 7], "max_tokens": 1})).status_code == 200
    assert engine.asked == [[ord(c) for c in "<user>hello"], [5, 6, 7]]
    assert engine.requests == [], "nothing was generated"


async def test_why_without_a_break(http, engine):
    tokens = {"hbm": 24, "dram": 0, "nvme": 0, "peer": 0, "computed": 1}
    engine.forecast = Forecast(tokens, None, 0.0, 0.0, "none")
    body = (await http.post("/admin/why", json={"prompt": "x" * 24})).json()
    assert (body["miss"], body["break"]) == (None, None)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, "prompt"),
        ({"prompt": ["a", "b"]}, 400, "prompt"),
        ({"prompt": "x", "model": "other"}, 404, "model"),
        ({"prompt": "x" * 3000}, 400, "prompt"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, 400, "messages[0].role"),
        ({"prompt": "x", "wat": 1}, 400, "wat"),
        ([1], 400, None),
    ],
)  # fmt: skip
async def test_a_question_that_makes_no_sense_is_one_line(http, engine, forecast, body, status, param):
    response = await http.post("/admin/why", json=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


async def test_why_of_what_is_not_json(http):
    response = await http.post("/admin/why", content=b"{")
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


# --- who may ask

ROUTES = (("GET", "/admin/receipts"), ("GET", "/admin/receipts/chatcmpl-1"), ("POST", "/admin/why"))


@pytest.mark.parametrize(("method", "path"), ROUTES)
@pytest.mark.parametrize(
    ("peer", "headers"),
    [("10.0.0.1", {}), ("127.0.0.1", {"origin": "http://evil.example"}), ("::1", {"forwarded": "x"})],
)
async def test_where_nobody_is_asked_only_programs_here_may(app, kept, method, path, peer, headers):
    async with client_of(app, peer) as http:
        response = await http.request(method, path, headers=headers, json=None if method == "GET" else {"prompt": "x"})
    assert response.status_code == 403


def row(name, roles):
    digest = hashlib.sha256(name.encode()).hexdigest()
    return f'[[identity]]\nname = "{name}"\nroles = ["{roles}"]\ntoken_sha256 = "{digest}"\n'


@pytest.fixture
async def guarded(backend, tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text("".join(map(row, ("ann", "rex", "ops", "two"), ("user", "reader", "operator", 'user", "reader'))))
    async with client_of(make_app(backend, make_access(load_config(model="m", api_keys=path))), "10.0.0.1") as http:
        yield http


def shows(name):
    return {"authorization": f"Bearer {name}"} if name else {}


@pytest.mark.parametrize(("who", "status"), [("", 401), ("ann", 403), ("rex", 403), ("ops", 200)])
@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_where_keys_are_asked_operators_may(guarded, engine, kept, forecast, who, status, method, path):
    body = None if method == "GET" else {"prompt": "x" * 30}
    response = await guarded.request(method, path, headers=shows(who), json=body)
    assert response.status_code == status


@pytest.mark.parametrize(("who", "status"), [("", 401), ("ann", 200), ("rex", 403), ("ops", 403), ("two", 200)])
@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [5]})])
async def test_whoever_may_ask_for_completions_may_ask_for_tokens(guarded, who, status, path, body):
    assert (await guarded.post(path, json=body, headers=shows(who))).status_code == status


async def test_an_engine_that_is_too_busy_says_so(http, engine):
    def why(_):
        raise TimeoutError

    engine.why = why
    response = await http.post("/admin/why", json={"prompt": "x"})
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_busy")


@pytest.mark.parametrize(("who", "token"), [("ann", 16), ("two", 21)])
async def test_users_are_told_the_block_of_a_break_and_not_the_token(guarded, engine, who, token):
    """By exact tokens one could guess what others cached, one token after the other."""

    def script(request):
        tokens = {"hbm": 0, "dram": 0, "nvme": 0, "peer": 0, "computed": len(request.prompt_ids)}
        missed = Receipt(len(request.prompt_ids), tokens, MISS, 0.0, 0.0, request_id=request.request_id)
        return [Output(request.request_id, 0, (0,), "", "stop", receipt=missed)]

    engine.script = script
    usage = (await guarded.post("/v1/chat/completions", json=CHAT, headers=shows(who))).json()["usage"]["kvterrace"]
    assert usage["miss"] == {**TOLD, "token": token}
    assert "cached" not in usage["miss"]
