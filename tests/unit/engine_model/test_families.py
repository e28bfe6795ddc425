"""Logits of tiny random models are those of transformers, for every family, rope scaling and way to cut the work."""

from typing import Any

import pytest
import torch
import transformers
from kvterrace.engine.model import load_model

pytestmark = pytest.mark.unit

TOLERANCE = 1e-4
TOKENS = torch.randint(0, 256, (100,), generator=torch.Generator().manual_seed(3)).tolist()
ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "mscale": 1.0,
        "mscale_all_dim": 0.5,
        "beta_fast": 16.0,
        "truncate": False,
    },
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
}


def reference(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0]


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", ["llama", "llama-tied-biased", "llama-mqa", "mistral", "qwen2", "qwen3"])
def test_logits_are_those_of_transformers(write_model: Any, runner: Any, family: str, rope: str) -> None:
    path, model = write_model(family, rope=ROPES[rope])
    got = runner(load_model(path)).step([TOKENS])
    assert got.dtype == torch.float32
    assert (got - reference(model, TOKENS)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_chunks_and_batches_give_the_same_logits_as_one_prompt(write_model: Any, runner: Any, family: str) -> None:
    path, model = write_model(family)
    other = TOKENS[::-1][:50]
    batch = runner(load_model(path), sequences=2)
    batch.step([TOKENS[:17], other[:33]])
    batch.step([TOKENS[17:99], other[33:49]])
    last = batch.step([TOKENS[99:], other[49:]])
    assert (last[0] - reference(model, TOKENS)[-1]).abs().max() <= TOLERANCE
    assert (last[1] - reference(model, other)[-1]).abs().max() <= TOLERANCE


def test_only_requested_rows_come_back_in_their_order(write_model: Any, runner: Any) -> None:
    path, _ = write_model("llama")
    loaded = load_model(path)
    every = runner(loaded).step([TOKENS])
    some = runner(loaded).step([TOKENS], rows=[99, 3])
    torch.testing.assert_close(some, every[[99, 3]], atol=1e-5, rtol=1e-5)
    assert runner(loaded).step([TOKENS], rows=[]).shape == (0, 256)


def test_bfloat16_stays_close_to_float32(write_model: Any, runner: Any) -> None:
    path, model = write_model("qwen3")
    got = runner(load_model(path, dtype=torch.bfloat16)).step([TOKENS])
    assert got.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(got, reference(model, TOKENS), dim=-1).min() > 0.999


def test_weights_stored_in_another_dtype_are_converted(write_model: Any, runner: Any) -> None:
    path, model = write_model("llama")
    model.to(torch.bfloat16).save_pretrained(path)
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    got = runner(load_model(path)).step([TOKENS])
    assert (got - reference(model, TOKENS)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_a_sliding_window_hides_what_lies_before_it(write_model: Any, runner: Any, family: str) -> None:
    window = {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 0}
    path, model = write_model(family, **window)
    loaded = load_model(path)
    assert loaded.config.window == 24
    want = reference(model, TOKENS)
    assert (runner(loaded).step([TOKENS]) - want).abs().max() <= TOLERANCE
    steps = runner(loaded)
    steps.step([TOKENS[:50]])
    assert (steps.step([TOKENS[50:]]) - want[50:]).abs().max() <= TOLERANCE


def test_windows_on_some_layers_end_the_context_where_they_would_begin_to_hide(write_model: Any, runner: Any) -> None:
    path, model = write_model("qwen2", sliding_window=24, use_sliding_window=True, max_window_layers=1)
    loaded = load_model(path)
    assert loaded.config.max_position == 24
    got = runner(loaded).step([TOKENS[:24]])
    assert (got - reference(model, TOKENS[:24])).abs().max() <= TOLERANCE
