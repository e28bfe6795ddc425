"""The demo model on KV that went through a lossy codec: how far its answers move, and that an engine lives on it."""

import os
import threading
from pathlib import Path

import pytest
from kvterrace.connector import Model, Place, make_connector
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.loop import EngineLoop
from kvterrace.engine.model import load_model
from kvterrace.engine.quality import cut_prompts, measure
from kvterrace.engine.request import Request, SamplingParams

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
DEFAULT = ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="module")
def loaded():
    path = Path(os.environ.get("KVTERRACE_MODEL", DEFAULT))
    assert path.exists(), f"the demo model is not at {path}; `make setup` fetches it"
    return load_model(path)


def test_answers_stay_close_and_closer_with_int8(loaded):
    """Bounds are about ten times what was measured: they catch a codec that went wrong, not a rounding."""
    text = (ROOT / "README.md").read_text()
    cuts = cut_prompts([text], loaded.tokenizer, most=1, prompt_tokens=160, judged_tokens=32, block_tokens=16)
    int8, fp8 = measure(loaded, cuts, ["int8", "fp8"], block_tokens=16)
    assert 0 < int8.kl_mean < fp8.kl_mean
    assert int8.kl_mean < 2e-3
    assert fp8.kl_mean < 2e-2
    assert min(int8.top1, fp8.top1) >= 0.9
    assert int8.stored_bytes / int8.exact_bytes < 0.27


@pytest.mark.parametrize("codec", ["int8", "fp8"])
def test_an_engine_answers_from_coded_blocks(loaded, codec):
    config = EngineConfig(model="demo", kv_connector="embedded", kv_codec=codec, kv_pool_pages=64)
    model, place = Model(loaded.digest, kv_codec=codec), Place(dram_bytes=32 << 20)
    loop = EngineLoop(
        loaded, config, lambda pool, wake: make_connector("embedded", pool, wake, model=model, place=place)
    )
    loop.start()
    try:
        ids = loaded.tokenizer.encode(
            "The capital of France is Paris. " * 16 + "The capital of France is", add_special=True
        )
        first = ask(loop, "a", ids)
        for _ in range(1000):  # saves end a moment after the answer; only then are their pages free to go
            loop.clear_hbm()
            if loop.stats().pages_free == 64:
                break
            threading.Event().wait(0.01)
        again = ask(loop, "b", ids)
        assert again[0] == first[0], "what the model is sure of survives a codec"
        receipt = again[1].receipt
        assert receipt.tokens["dram"] == (len(ids) - 1) // 16 * 16
        assert receipt.tokens["hbm"] == 0
        loop.check()
    finally:
        loop.close()


def ask(loop, name, ids):
    """(token ids, last output) of one greedy request of four tokens."""
    tokens, last, done = [], [], threading.Event()

    def take(output):
        tokens.extend(output.token_ids)
        if output.finish_reason:
            last.append(output)
            done.set()

    loop.submit(Request(name, ids, SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)), take)
    assert done.wait(120)
    assert last[0].finish_reason == "length", last[0].error
    return tokens, last[0]
