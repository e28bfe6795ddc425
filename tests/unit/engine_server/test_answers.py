"""The shapes of answers, whole and streamed: text, choices, logprobs, finish reasons, usage."""

import pytest
from kvterrace.engine.request import Output, TokenLogprob

pytestmark = pytest.mark.unit

RECEIPT = {
    "tokens": {"hbm": 2, "dram": 3, "nvme": 0, "peer": 0, "computed": 6},
    "miss_reason": "never_seen",
    "miss": {"reason": "never_seen", "token": 5, "tier": "", "gone_s": 0.0, "kept_s": 0.0, "fields": []},
    "queue_wait_s": 0.25,
    "cache_wait_s": 0.125,
    "saved_s": 0.5,
    "ttft_s": 0.75,
    "computed_s": 0.0625,
}
USAGE = {
    "prompt_tokens": 11,  # "<user>hello"
    "completion_tokens": 4,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 5},
    "kvterrace": RECEIPT,
}


def usage_of(body):
    """Without the id, which is the answer's."""
    usage = body["usage"]
    assert usage["kvterrace"].pop("request_id") == body["id"]
    return usage


async def test_a_whole_chat(chat):
    response = await chat()
    assert response.status_code == 200
    body = response.json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "fake"
    assert body["system_fingerprint"] == "kvt-000102030405"
    message = {"role": "assistant", "content": "Hi0", "refusal": None}
    assert body["choices"] == [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
    assert response.headers["x-request-id"] == body["id"]
    assert usage_of(body) == USAGE


async def test_a_streamed_chat(chat, read_events):
    response = await chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    events = read_events(response.text)
    assert {event["object"] for event in events} == {"chat.completion.chunk"}
    assert len({event["id"] for event in events}) == 1
    assert all("usage" not in event for event in events)
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "Hi0"
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert choices[-1]["delta"] == {}


async def test_streamed_usage_comes_last_and_equals_the_whole_answers(chat, complete, read_events):
    events = read_events((await chat(stream=True, stream_options={"include_usage": True})).text)
    assert events[-1]["choices"] == []
    assert usage_of(events[-1]) == USAGE
    assert all(event["usage"] is None for event in events[:-1])
    events = read_events((await complete(stream=True, stream_options={"include_usage": True})).text)
    assert usage_of(events[-1]) == usage_of((await complete()).json())
    assert sum(events[-1]["usage"]["kvterrace"]["tokens"].values()) == events[-1]["usage"]["prompt_tokens"]


async def test_n_samples_are_n_choices_with_one_receipt(chat, read_events):
    body = (await chat(n=3)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in body["choices"]] == ["Hi0", "Hi1", "Hi2"]
    assert body["usage"]["completion_tokens"] == 12
    assert usage_of(body)["kvterrace"] == RECEIPT
    texts = {0: "", 1: "", 2: ""}
    ends = []
    for event in read_events((await chat(n=3, stream=True)).text):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
            ends += [choice["index"]] if choice["finish_reason"] else []
    assert texts == {0: "Hi0", 1: "Hi1", 2: "Hi2"}
    assert sorted(ends) == [0, 1, 2]


async def test_a_whole_completion(complete):
    body = (await complete()).json()
    assert body["object"] == "text_completion"
    assert body["choices"] == [{"index": 0, "text": "Hi0", "logprobs": None, "finish_reason": "stop"}]
    assert body["usage"]["kvterrace"]["tokens"] == {"hbm": 2, "dram": 3, "nvme": 0, "peer": 0, "computed": 1}


async def test_several_prompts_are_choices_in_their_order_and_add_up(complete, read_events):
    body = (await complete(prompt=["hello", "my dear"], n=2)).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [(0, "Hi0"), (1, "Hi1"), (2, "Hi0"), (3, "Hi1")]
    assert body["usage"]["prompt_tokens"] == 6 + 8
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 10
    assert body["usage"]["kvterrace"]["tokens"]["computed"] == 4
    texts = dict.fromkeys(range(4), "")
    for event in read_events((await complete(prompt=["hello", "my dear"], n=2, stream=True)).text):
        for choice in event["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == {0: "Hi0", 1: "Hi1", 2: "Hi0", 3: "Hi1"}


def with_logprobs(make_receipt):
    """ "é" as two tokens that are half a character each, then EOS, which is not part of the text."""

    def script(request):
        top = ((ord("é"), -0.1), (ord("b"), -2.0))
        first = TokenLogprob(ord("é"), -0.1, top)
        end = TokenLogprob(0, -0.5, ((0, -0.5),))
        return [
            Output(request.request_id, 0, (ord("é"),), "", logprobs=(first,)),
            Output(request.request_id, 0, (ord("b"),), "éb", logprobs=(TokenLogprob(ord("b"), -1.5, top),)),
            Output(request.request_id, 0, (0,), "", "stop", logprobs=(end,), receipt=make_receipt(request)),
        ]

    return script


async def test_chat_logprobs_whole_and_streamed(chat, engine, make_receipt, read_events):
    engine.script = with_logprobs(make_receipt)
    fields = {"logprobs": True, "top_logprobs": 2}
    content = (await chat(**fields)).json()["choices"][0]["logprobs"]["content"]
    top = [{"token": "é", "logprob": -0.1, "bytes": [195, 169]}, {"token": "b", "logprob": -2.0, "bytes": [98]}]
    assert content == [
        {"token": "é", "logprob": -0.1, "bytes": [195, 169], "top_logprobs": top},
        {"token": "b", "logprob": -1.5, "bytes": [98], "top_logprobs": top},
    ]
    streamed = []
    for event in read_events((await chat(**fields, stream=True)).text):
        for choice in event["choices"]:
            streamed += (choice["logprobs"] or {"content": []})["content"]
    assert streamed == content


async def test_completion_logprobs_whole_and_streamed(complete, engine, make_receipt, read_events):
    engine.script = with_logprobs(make_receipt)
    logprobs = (await complete(logprobs=2)).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["é", "b"],
        "token_logprobs": [-0.1, -1.5],
        "top_logprobs": [{"é": -0.1, "b": -2.0}] * 2,
        "text_offset": [0, 1],
    }
    streamed = {name: [] for name in logprobs}
    for event in read_events((await complete(logprobs=2, stream=True)).text):
        for name, values in event["choices"][0]["logprobs"].items():
            streamed[name] += values
    assert streamed == logprobs


async def test_the_end_token_is_shown_when_it_does_not_end_anything(chat, engine, make_receipt):
    engine.script = with_logprobs(make_receipt)
    body = (await chat(logprobs=True, ignore_eos=True)).json()
    assert len(body["choices"][0]["logprobs"]["content"]) == 3


async def test_length_is_told(complete, engine, make_receipt):
    engine.script = lambda r: [Output(r.request_id, 0, (97,), "a", "length", receipt=make_receipt(r))]
    assert (await complete()).json()["choices"][0]["finish_reason"] == "length"
