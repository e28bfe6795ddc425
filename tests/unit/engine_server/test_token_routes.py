"""POST /tokenize and /detokenize, as vLLM's."""

import pytest

pytestmark = pytest.mark.unit


async def test_a_prompt_and_messages_become_tokens(http, engine):
    body = (await http.post("/tokenize", json={"model": "fake", "prompt": "hey"})).json()
    assert body == {"count": 4, "max_model_len": 2501, "tokens": [1, *map(ord, "hey")], "token_strs": None}
    asked = {"messages": [{"role": "user", "content": "hey"}]}
    body = (await http.post("/tokenize", json=asked)).json()
    assert body["tokens"] == [ord(c) for c in "<user>hey"]
    body = (await http.post("/tokenize", json={**asked, "add_generation_prompt": False})).json()
    assert body["tokens"] == [ord(c) for c in "<user>hey|"]
    assert engine.requests == []


async def test_special_tokens_and_texts_as_asked_for(http):
    body = (await http.post("/tokenize", json={"prompt": "hi", "add_special_tokens": False})).json()
    assert body["tokens"] == [ord("h"), ord("i")]
    body = (await http.post("/tokenize", json={"prompt": "hi", "return_token_strs": True})).json()
    assert body["token_strs"] == ["\x01", "h", "i"]


async def test_tokens_become_the_text_again(http):
    body = (await http.post("/detokenize", json={"tokens": [104, 105]})).json()
    assert body == {"prompt": "hi"}
    assert (await http.post("/detokenize", json={"tokens": []})).json() == {"prompt": ""}


async def test_a_prompt_longer_than_the_model_takes_is_still_counted(http):
    body = (await http.post("/tokenize", json={"prompt": "x" * 5000, "add_special_tokens": False})).json()
    assert body["count"] == 5000


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, 400, "prompt"),
        ("/tokenize", {"prompt": 5}, 400, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
        ("/tokenize", {"prompt": "x", "wat": 1}, 400, "wat"),
        ("/tokenize", {"messages": [{"role": "assistant", "content": "x"}]}, 400, "messages"),
        ("/tokenize", {"messages": []}, 400, "messages"),
        ("/detokenize", {}, 400, "tokens"),
        ("/detokenize", {"tokens": [-1]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": ["x"]}, 400, "tokens.0"),
        ("/detokenize", {"tokens": [10_000]}, 400, "tokens"),
        ("/detokenize", [], 400, None),
    ],
)  # fmt: skip
async def test_what_makes_no_sense_is_one_line(http, path, body, status, param):
    response = await http.post(path, json=body)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param
    assert "\n" not in response.json()["error"]["message"]


async def test_not_while_there_is_no_model(http, backend):
    backend.stopping()
    assert (await http.post("/tokenize", json={"prompt": "x"})).status_code == 503
