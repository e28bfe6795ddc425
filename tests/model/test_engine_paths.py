"""The demo model through the engine: the answer does not depend on where the KV came from.

Greedy outputs are compared token by token: on one machine in float32 the paths differ in rounding only, and these
prompts have no ties.
"""

import os
import threading
from pathlib import Path

import pytest
from kvterrace.connector import Model, Place, make_connector
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.loop import EngineLoop
from kvterrace.engine.model import load_model
from kvterrace.engine.request import Request, SamplingParams

pytestmark = pytest.mark.model

DEFAULT = Path(__file__).parents[2] / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
SYSTEM = "You are a terse assistant for a library of botany. Answer in one short sentence. " * 12
QUESTIONS = [
    "What is the capital of France?",
    "Name a tree that keeps its needles in winter.",
    "Which gas do plants take in?",
    "How many legs does a spider have?",
]


@pytest.fixture(scope="module")
def loaded():
    path = Path(os.environ.get("KVTERRACE_MODEL", DEFAULT))
    assert path.exists(), f"the demo model is not at {path}; `make setup` fetches it"
    return load_model(path)


@pytest.fixture
def engine(loaded):
    loops = []

    def build(factory=None, **config):
        config = {"model": "demo", "kv_connector": "none", "kv_pool_pages": 200} | config
        loop = EngineLoop(loaded, EngineConfig(**config), factory)
        loops.append(loop)
        loop.start()
        return loop

    yield build
    for loop in loops:
        loop.check()
        loop.close()


class Answer:
    def __init__(self):
        self.tokens, self.text, self.last, self.done = [], "", None, threading.Event()

    def __call__(self, output):
        self.tokens += output.token_ids
        self.text += output.text
        if output.finish_reason:
            self.last = output
            self.done.set()

    def wait(self):
        assert self.done.wait(120)
        assert self.last.finish_reason in {"stop", "length"}, self.last.error
        return self


def ask(loop, loaded, question, **params):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    ids = loaded.tokenizer.encode(loaded.tokenizer.apply_chat(messages), add_special=False)
    answer = Answer()
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 16} | params)
    loop.submit(Request(f"{question}/{params.n}/{id(answer)}", ids, params), answer)
    return answer


@pytest.fixture(scope="module")
def expected(loaded):
    """Nothing shared, one request at a time, the prompt in one piece."""
    config = EngineConfig(model="demo", kv_connector="none", kv_pool_pages=200, prefix_cache=False)
    loop = EngineLoop(loaded, config)
    loop.start()
    answers = [ask(loop, loaded, question).wait().tokens for question in QUESTIONS]
    loop.close()
    return answers


def test_hbm_hits_chunks_and_company_change_nothing(engine, loaded, expected):
    loop = engine(max_step_tokens=100)
    for _ in range(2):
        answers = [ask(loop, loaded, question) for question in QUESTIONS]
        assert [answer.wait().tokens for answer in answers] == expected
    assert all(answer.last.receipt.tokens["hbm"] > 180 for answer in answers)


def test_preemption_changes_nothing(engine, loaded):
    roomy = engine(prefix_cache=False)
    longer = {"ignore_eos": True, "max_tokens": 24}
    alone = [ask(roomy, loaded, question, **longer).wait() for question in QUESTIONS[:2]]
    pages = sum(-(-answer.last.receipt.prompt_tokens // 16) for answer in alone) + 1  # both get in, one can grow
    tight = engine(prefix_cache=False, kv_pool_pages=pages)
    answers = [ask(tight, loaded, question, **longer) for question in QUESTIONS[:2]]
    assert [answer.wait().tokens for answer in answers] == [answer.tokens for answer in alone]
    assert tight.stats().preemptions > 0


def test_the_embedded_store_brings_back_what_hbm_lost(engine, loaded, expected):
    place = Place(dram_bytes=64 << 20)

    def factory(pool, on_event):
        return make_connector("embedded", pool, on_event, model=Model(loaded.digest), place=place)

    loop = engine(factory, kv_connector="embedded")
    first = ask(loop, loaded, QUESTIONS[0]).wait()
    for _ in range(1000):  # saves end a moment after the answer; only then are their pages free to go
        loop.clear_hbm()
        if loop.stats().pages_free == 200:
            break
        threading.Event().wait(0.01)
    again = ask(loop, loaded, QUESTIONS[0]).wait()
    assert first.tokens == again.tokens == expected[0]
    receipt = again.last.receipt
    assert receipt.tokens["dram"] == (receipt.prompt_tokens - 1) // 16 * 16
    assert receipt.tokens["hbm"] == 0
    assert receipt.miss_reason == ""


def test_text_is_the_tokens_text_and_ends_at_a_stop_string(engine, loaded, expected):
    loop = engine()
    whole = ask(loop, loaded, QUESTIONS[2], ignore_eos=True).wait()
    assert whole.text == loaded.tokenizer.decode(whole.tokens)
    stop = whole.text[6:12]
    cut = ask(loop, loaded, QUESTIONS[2], ignore_eos=True, stop=(stop,)).wait()
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert cut.last.finish_reason == "stop"
