"""Whatever a client can write into a field is obeyed or refused by name; nothing is ignored."""

import json

import pytest
from kvterrace.engine.request import SamplingParams

pytestmark = pytest.mark.unit


def error_of(response, status=400):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "Traceback" not in response.text
    return error


BOTH = [
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", "5"), ("max_tokens", 1.5), ("max_tokens", True),
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"),
    ("top_p", 0), ("top_p", 1.1), ("top_k", -2), ("top_k", 1.5), ("min_p", -0.1), ("min_p", 1.1),
    ("repetition_penalty", 0), ("presence_penalty", 2.1), ("presence_penalty", -2.1), ("frequency_penalty", 2.1),
    ("seed", 2**63), ("seed", "x"), ("n", 0), ("n", 129), ("stream", "yes"), ("stream", 1),
    ("stop", ""), ("stop", ["a"] * 17), ("stop", 5), ("stop", "x" * 257),
    ("stop_token_ids", [10_000]), ("stop_token_ids", [0] * 65), ("stop_token_ids", "a"),
    ("ignore_eos", 1), ("priority", "urgent"), ("stream_options", {"include_usage": True}), ("model", 5),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), BOTH)
async def test_a_value_out_of_bounds_is_refused_by_name(chat, complete, engine, field, value):
    for post in (chat, complete):
        error = error_of(await post(**{field: value}))
        assert error["param"] == field
        assert error["type"] == "invalid_request_error"
        assert field in error["message"]
    assert engine.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function"}]), ("tool_choice", "required"), ("functions", [{}]),
        ("response_format", {"type": "json_object"}), ("logit_bias", {"5": 1}), ("modalities", ["audio"]),
        ("reasoning_effort", "low"), ("prediction", {}), ("audio", {}), ("web_search_options", {}),
        ("guided_json", {}), ("min_tokens", 3), ("prompt", "x"), ("echo", True), ("nonsense", None),
        ("top_logprobs", 21), ("top_logprobs", 3), ("logprobs", 1), ("max_completion_tokens", 0),
    ],
)  # fmt: skip
async def test_chat_refuses_what_it_cannot_do(chat, engine, field, value):
    assert error_of(await chat(**{field: value}))["param"] == field
    assert engine.requests == []


@pytest.mark.parametrize(
    ("field", "value"),
    [("best_of", 2), ("suffix", "x"), ("echo", True), ("logit_bias", {"5": 1}), ("logprobs", 21), ("logprobs", True),
     ("messages", []), ("top_logprobs", 1), ("max_completion_tokens", 5), ("tools", [])],
)  # fmt: skip
async def test_completions_refuse_what_they_cannot_do(complete, engine, field, value):
    assert error_of(await complete(**{field: value}))["param"] == field
    assert engine.requests == []


async def test_values_that_ask_for_nothing_are_fine(chat, complete):
    harmless = {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "logit_bias": {}}
    nothing = {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "functions": None}
    nulls = dict.fromkeys(["temperature", "stop", "seed", "max_tokens", "stream_options", "audio", "logprobs"])
    assert (await chat(**harmless, **nothing, **nulls)).status_code == 200
    assert (await complete(**harmless, best_of=2, n=2, suffix="", echo=False)).status_code == 200


async def test_nested_fields_are_named_with_their_path(chat):
    assert error_of(await chat(stop=["a", ""]))["param"] == "stop[1]"
    options = {"include_usage": "x"}
    assert error_of(await chat(stream=True, stream_options=options))["param"] == "stream_options.include_usage"
    error = error_of(await chat(stream=True, stream_options={"often": True}))
    assert (error["param"], error["code"]) == ("stream_options.often", "unknown_parameter")


async def test_every_sampling_parameter_reaches_the_engine(chat, complete, engine):
    common = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1, "presence_penalty": -1,
        "frequency_penalty": 1.5, "seed": -3, "stop_token_ids": [5], "ignore_eos": True, "n": 2,
    }  # fmt: skip
    await chat(**common, stop="a", max_completion_tokens=9, logprobs=True, top_logprobs=4, priority="batch")
    expected = {**common, "stop_token_ids": (5,)}
    assert engine.requests[0].params == SamplingParams(**expected, stop=("a",), max_tokens=9, logprobs=4)
    assert engine.requests[0].priority == "batch"
    await complete(**common, stop=["a", "b"], max_tokens=3, logprobs=0)
    assert engine.requests[1].params == SamplingParams(**expected, stop=("a", "b"), max_tokens=3, logprobs=0)
    assert engine.requests[1].priority == "interactive"


async def test_defaults_are_openais(chat, complete, engine):
    await chat(top_k=-1)
    await complete()
    assert engine.requests[0].params == SamplingParams()
    assert engine.requests[1].params == SamplingParams(max_tokens=16)


async def test_two_different_limits_are_refused(chat):
    assert error_of(await chat(max_tokens=3, max_completion_tokens=4))["param"] == "max_completion_tokens"
    assert (await chat(max_tokens=3, max_completion_tokens=3)).status_code == 200


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"), ("hi", "messages"), (["hi"], "messages[0]"), ([{"role": "user"}], "messages[0].content"),
        ([{"role": "boss", "content": "x"}], "messages[0].role"), ([{"content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{}]}], "messages[1].tool_calls"),
        ([{"role": "assistant", "content": "x"}], "messages"),  # the template refuses it
    ],
)  # fmt: skip
async def test_a_bad_message_is_named(chat, engine, messages, param):
    assert error_of(await chat(messages=messages))["param"] == param
    assert engine.requests == []


async def test_text_parts_and_roles_reach_the_template(chat, engine):
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": None, "tool_calls": None},
        {"role": "tool", "content": "t", "tool_call_id": "1"},
    ]
    assert (await chat(messages=messages)).status_code == 200
    assert "".join(map(chr, engine.requests[0].prompt_ids)) == "<system>s<user>ab<assistant><tool>t"


@pytest.mark.parametrize(
    "prompt",
    ["", [], [""], [[]], {"a": 1}, 5, [1, "a"], [[1], 2], [[1.5]], [True], [10_000], [-1], [["a"]], ["a"] * 129],
)
async def test_a_bad_prompt_is_refused(complete, engine, prompt):
    assert error_of(await complete(prompt=prompt))["param"] == "prompt"
    assert engine.requests == []


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [("ab", [[1, 97, 98]]), (["a", "b"], [[1, 97], [1, 98]]), ([5, 6], [[5, 6]]), ([[5], [6, 7]], [[5], [6, 7]])],
)
async def test_every_form_of_prompt_is_understood(complete, engine, prompt, ids):
    assert (await complete(prompt=prompt)).status_code == 200
    assert [list(request.prompt_ids) for request in engine.requests] == ids


async def test_prompts_times_n_is_bounded(complete, engine):
    assert error_of(await complete(prompt=["a"] * 65, n=2))["param"] == "n"
    assert engine.requests == []


@pytest.mark.parametrize("length", [2_500, 2_501, 9_000])
async def test_the_longest_prompt_fits_and_one_more_does_not(complete, chat, length):
    response = await complete(prompt=[5] * length)
    if length == 2_500:
        assert response.status_code == 200
        return
    error = error_of(response)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert "2500" in error["message"]
    assert str(length) in error["message"]
    error = error_of(await chat(messages=[{"role": "user", "content": "x" * length}]))
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")


async def test_unknown_and_missing_model(chat, http):
    error = error_of(await chat(model="other"), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    response = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert error_of(response)["param"] == "model"
    response = await http.post("/v1/completions", json={"model": "fake"})
    assert error_of(response)["param"] == "prompt"


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"x"', b'{"a": NaN}', b"\xff\xfe", b"[" * 5_000, b'{"model": "\\ud800"}', b"null"],
)
async def test_a_malformed_body_is_a_400(http, raw):
    for path in ("/v1/chat/completions", "/v1/completions"):
        assert error_of(await http.post(path, content=raw))["type"] == "invalid_request_error"


async def test_a_body_too_large_is_a_413_whether_declared_or_not(http):
    big = json.dumps({"model": "fake", "prompt": "x" * (17 << 20)}).encode()

    async def undeclared():
        for start in range(0, len(big), 1 << 20):
            yield big[start : start + (1 << 20)]

    assert error_of(await http.post("/v1/completions", content=big), 413)["code"] == "body_too_large"
    response = await http.post("/v1/completions", content=undeclared())
    assert error_of(response, 413)["code"] == "body_too_large"


async def test_unknown_routes_and_methods_have_the_error_shape(http):
    error_of(await http.get("/v1/nothing"), 404)
    error_of(await http.get("/v1/completions"), 405)
