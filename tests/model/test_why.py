"""The demo model served over HTTP with its own store: what an operator asks about a real prompt, and gets told."""

import os
import threading
from pathlib import Path

import httpx
import pytest
import tokenizers
from kvterrace.connector import Model, Place, make_connector
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.loop import EngineLoop
from kvterrace.engine.model import load_model, read_tokenizer
from kvterrace.engine.server.app import make_app
from kvterrace.engine.server.backend import Backend

pytestmark = pytest.mark.model

DEFAULT = Path(__file__).parents[2] / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
RULES = "You answer questions about the trees of this garden. Answer in one short sentence. " * 3
QUESTION = {"role": "user", "content": "Which tree keeps its needles in winter?"}


@pytest.fixture(scope="module")
def model_path() -> Path:
    path = Path(os.environ.get("KVTERRACE_MODEL", DEFAULT))
    assert path.exists(), f"the demo model is not at {path}; `make setup` fetches it"
    return path


@pytest.fixture(scope="module")
def served(model_path):
    """(app, engine, tokenizer)."""
    loaded = load_model(model_path)
    place = Place(dram_bytes=64 << 20)

    def factory(pool, on_event):
        return make_connector("embedded", pool, on_event, model=Model(loaded.digest), place=place)

    engine = EngineLoop(loaded, EngineConfig(model="demo", kv_connector="embedded", kv_pool_pages=100), factory)
    engine.start()
    backend = Backend("demo", "1")
    backend.ready(loaded, engine)
    yield make_app(backend), engine, loaded.tokenizer
    engine.close()


@pytest.fixture
async def http(served):
    transport = httpx.ASGITransport(app=served[0], client=("127.0.0.1", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://t", timeout=120) as client:
        yield client


def chat(day: str) -> dict:
    system = {"role": "system", "content": f"Today is {day}. {RULES}"}
    return {"model": "demo", "messages": [system, QUESTION], "max_tokens": 2, "temperature": 0}


def saved(engine: EngineLoop) -> None:
    """Saves end a moment after the answer; only then can all pages be given back."""
    for _ in range(1000):
        engine.clear_hbm()
        if engine.stats().pages_free == 100:
            return
        threading.Event().wait(0.01)
    raise AssertionError("a save never ended")


async def test_a_date_in_the_head_is_found_by_asking_why(http, served):
    _, engine, tokenizer = served
    first = (await http.post("/v1/chat/completions", json=chat("Monday, 7 May"))).json()
    saved(engine)

    same = (await http.post("/admin/why", json=chat("Monday, 7 May"))).json()
    assert same["store"] == "embedded"
    assert same["tokens"]["dram"] == (same["prompt_tokens"] - 1) // 16 * 16
    assert (same["miss"], same["break"]) == (None, None)

    other = (await http.post("/admin/why", json=chat("Friday, 7 May"))).json()
    broken = other["break"]
    assert other["miss"]["reason"] == "diverged"
    assert broken["before"].endswith("Today is")
    assert broken["yours"].startswith(" Friday, 7 May. You answer")
    assert broken["cached"].startswith(" Monday, 7 May. You answer")
    ids = tokenizer.encode(tokenizer.apply_chat(chat("Friday, 7 May")["messages"]), add_special=False)
    assert tokenizer.written(ids[: broken["token"]]) == broken["before"]

    second = (await http.post("/v1/chat/completions", json=chat("Friday, 7 May"))).json()
    usage = second["usage"]["kvterrace"]
    assert usage["tokens"] == other["tokens"], "what was foretold"
    assert usage["miss"] == other["miss"]
    kept = (await http.get(f"/admin/receipts/{second['id']}")).json()
    assert (kept["tokens"], kept["miss"]) == (usage["tokens"], usage["miss"])
    total = (await http.get("/admin/receipts")).json()
    assert [each["request_id"] for each in total["receipts"]] == [second["id"], first["id"]]


async def test_tokens_are_the_models_own_and_come_back_as_the_text(http, served):
    tokenizer = served[2]
    text = "Hällo 🌲 <|im_start|>, 12345!"
    body = (await http.post("/tokenize", json={"prompt": text})).json()
    assert body["tokens"] == tokenizer.encode(text, add_special=True)
    assert (await http.post("/detokenize", json={"tokens": body["tokens"]})).json() == {"prompt": text}
    messages = chat("today")["messages"]
    body = (await http.post("/tokenize", json={"messages": messages})).json()
    assert body["tokens"] == tokenizer.encode(tokenizer.apply_chat(messages), add_special=False)


def test_the_written_tokenizer_is_the_models(served, model_path, tmp_path):
    tokenizer, file = served[2], tmp_path / "tokenizer.json"
    file.write_text(read_tokenizer(model_path).to_str())
    read = tokenizers.Tokenizer.from_file(str(file))
    for text in ("Hällo 🌲", "12345 + 67", "<|im_start|>user\nhi<|im_end|>", "  two  spaces\n\n", "naïve café"):
        ids = read.encode(text).ids
        assert ids == tokenizer.encode(text, add_special=True)
        assert read.decode(ids, skip_special_tokens=False) == text
