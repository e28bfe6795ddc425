"""What is computed wrongly if misread is read right, and what cannot be computed is refused by name."""

from typing import Any

import pytest
from kvterrace.engine.model import ModelError
from kvterrace.engine.model.config import config_from_gguf, config_from_hf

pytestmark = pytest.mark.unit

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 96,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
GGUF: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 4,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.context_length": 128,
    "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 9.999999747378752e-06,
}
SHAPES = {"token_embd.weight": (256, 64)}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "MixtralForCausalLM.*LlamaForCausalLM.*Qwen3ForCausalLM"),
        ({"architectures": None}, "none named"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "longrope.*yarn"),
        ({"rope_scaling": {"rope_type": "linear"}}, "linear has no 'factor'"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial rotary"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"num_key_value_heads": 3}, "4 attention heads .* 3 KV heads"),
    ],
)
def test_unsupported_configurations_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        config_from_hf(LLAMA | change)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(ModelError, match="rms_norm_eps"):
        config_from_hf({key: value for key, value in LLAMA.items() if key != "rms_norm_eps"})


def test_old_and_new_spelling_of_rope_are_the_same() -> None:
    old = config_from_hf(LLAMA | {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = config_from_hf(LLAMA | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}})
    assert old == new


def test_dynamic_scaling_keeps_plain_frequencies_and_the_trained_context() -> None:
    # Beyond it every new token would change the frequencies that cached keys were rotated with.
    config = config_from_hf(LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}})
    assert config.rope.kind == "default"
    assert config.max_position == 128


def test_yarn_extends_the_context_that_the_file_states_as_trained() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert config_from_hf(LLAMA | {"rope_scaling": scaling}).max_position == 512


def test_gguf_epsilon_is_the_one_before_rounding() -> None:
    assert config_from_gguf(GGUF, SHAPES).norm_eps == 1e-5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"general.architecture": "falcon"}, "falcon.*Llama.*Qwen3"),
        ({"llama.expert_count": 8}, "mixture-of-experts"),
        ({"llama.rope.dimension_count": 8}, "partial rotary"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 4.0}, "longrope.*yarn"),
        ({"llama.block_count": None}, "llama.block_count"),
    ],
)
def test_unsupported_gguf_metadata_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        config_from_gguf(GGUF | change, SHAPES)
