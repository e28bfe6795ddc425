"""One id from the client's answer to the store's receipt, and the trace context that goes with it."""

import pytest
from kvterrace.engine.server.ids import CallIds, request_ids, trace_of

pytestmark = pytest.mark.unit

TRACE = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"


async def test_the_answers_id_is_the_engines_and_the_headers(chat, complete, engine):
    for post, prefix in ((chat, "chatcmpl-"), (complete, "cmpl-")):
        response = await post()
        name = response.json()["id"]
        assert name.startswith(prefix)
        assert response.headers["x-request-id"] == engine.requests[-1].request_id == name
        assert response.json()["usage"]["kvterrace"]["request_id"] == name


async def test_a_streams_id_is_the_same_everywhere(chat, engine, read_events):
    response = await chat(stream=True, stream_options={"include_usage": True})
    events = read_events(response.text)
    name = engine.requests[-1].request_id
    assert {event["id"] for event in events} == {name}
    assert events[-1]["usage"]["kvterrace"]["request_id"] == name
    assert response.headers["x-request-id"] == name


async def test_several_prompts_are_numbered_behind_one_id(complete, engine):
    body = (await complete(prompt=["a", "b", "c"])).json()
    assert [each.request_id for each in engine.requests] == [f"{body['id']}/{number}" for number in range(3)]
    assert body["usage"]["kvterrace"]["request_id"] == body["id"]


async def test_a_clients_own_id_is_kept(http, engine):
    body = {"model": "fake", "prompt": "hello"}
    response = await http.post("/v1/completions", json=body, headers={"x-request-id": "job-7.a_b"})
    assert response.json()["id"] == response.headers["x-request-id"] == "cmpl-job-7.a_b"


@pytest.mark.parametrize("header", ["", "a b", "x" * 65, "../etc", "a\tb", "ü".encode().decode("latin-1")])
async def test_what_is_no_name_is_passed_over(http, header):
    response = await http.post(
        "/v1/completions", json={"model": "fake", "prompt": "x"}, headers={"x-request-id": header.encode("latin-1")}
    )
    assert response.status_code == 200
    assert len(response.json()["id"]) == len("cmpl-") + 32


def test_two_calls_in_flight_never_have_the_same_id():
    ids = CallIds("cmpl")
    with ids.take("a") as first, ids.take("a") as second:
        assert first == "cmpl-a"
        assert second.startswith("cmpl-a-")
    with ids.take("a") as third:
        assert third == "cmpl-a", "the first has ended"


def test_ids_of_a_calls_requests():
    assert request_ids("c", 1) == ["c"]
    assert request_ids("c", 2) == ["c/0", "c/1"]


async def test_a_trace_context_reaches_the_engine(http, engine):
    body = {"model": "fake", "prompt": "hello"}
    await http.post("/v1/completions", json=body, headers={"traceparent": TRACE})
    await http.post("/v1/completions", json=body, headers={"traceparent": "nonsense"})
    await http.post("/v1/completions", json=body)
    assert [each.traceparent for each in engine.requests] == [TRACE, "", ""]


@pytest.mark.parametrize("header", [None, "", "00-1-2-3", TRACE.upper(), TRACE + "-x", TRACE + "\n"])
def test_a_header_that_is_no_trace_context(header):
    assert trace_of(header) == ""


async def test_a_request_may_go_without_cache(complete, engine):
    await complete(kvterrace={"cache": False})
    await complete()
    assert [each.cache for each in engine.requests] == [False, True]
    response = await complete(kvterrace={"cache": "no"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "kvterrace.cache")
