"""ModelConfig: what the forward pass needs to know of a model, read from config.json or from GGUF metadata.

Everything here but the context length changes the keys and values, so `digest_fields` feeds the weights digest.
"""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any

from .errors import ModelError
from .rope import RopeConfig

#: config.json "architectures" and GGUF "general.architecture" this engine runs. SmolLM files call themselves llama.
HF_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
GGUF_ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
FAMILIES = "Llama, SmolLM (1 and 2), Mistral, Qwen2, Qwen2.5 and Qwen3 (dense)"


@dataclasses.dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in elements. max_position: tokens in the longest context that is computed exactly.

    window: how many tokens a query sees in each layer, itself included; None is all. The attention plan needs it.
    """

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_position: int
    norm_eps: float
    rope: RopeConfig
    window: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise ModelError(f"{self.heads} attention heads cannot be shared by {self.kv_heads} KV heads")
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} is odd; rotary embedding needs pairs")

    def digest_fields(self) -> dict[str, object]:
        """The fields that change KV, by name. max_position is a limit, not part of the computation."""
        fields = dataclasses.asdict(self)
        del fields["max_position"]
        return fields


def config_from_hf(raw: Mapping[str, Any]) -> ModelConfig:
    """From a parsed config.json. Raises ModelError for what this engine would compute wrongly."""
    architecture = (raw.get("architectures") or ["(none named)"])[0]
    family = HF_ARCHITECTURES.get(architecture)
    if family is None:
        raise ModelError(f"architecture {architecture} is not supported; supported: {', '.join(HF_ARCHITECTURES)}")
    _refuse_hf(raw)
    try:
        layers, heads, hidden = raw["num_hidden_layers"], raw["num_attention_heads"], raw["hidden_size"]
        head_dim = raw.get("head_dim") or hidden // heads
        rope = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
        theta = rope.get("rope_theta") or raw.get("rope_theta") or 10000.0
        scaling = RopeConfig.from_hf(rope, theta=float(theta), max_position=raw["max_position_embeddings"])
        window, longest = _hf_window(raw, family, layers)
        attention_bias = bool(raw.get("attention_bias", False))
        return ModelConfig(
            family=family,
            layers=layers,
            hidden=hidden,
            intermediate=raw["intermediate_size"],
            heads=heads,
            kv_heads=raw.get("num_key_value_heads") or heads,
            head_dim=head_dim,
            vocab=raw["vocab_size"],
            max_position=min(longest, max(raw["max_position_embeddings"], scaling.extended_positions)),
            norm_eps=raw["rms_norm_eps"],
            rope=scaling,
            window=window,
            qkv_bias=family == "qwen2" or attention_bias,
            output_bias=family != "qwen2" and attention_bias,
            mlp_bias=bool(raw.get("mlp_bias", False)),
            qk_norm=family == "qwen3",
            tied_embeddings=bool(raw.get("tie_word_embeddings", False)),
        )
    except KeyError as missing:
        raise ModelError(f"config.json has no {missing}") from None


def _refuse_hf(raw: Mapping[str, Any]) -> None:
    if raw.get("quantization_config"):
        method = raw["quantization_config"].get("quant_method", "unknown")
        raise ModelError(
            f"quantised safetensors ({method}) are not supported; use the unquantised weights or a GGUF file"
        )
    if raw.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ModelError(f"activation {raw['hidden_act']} is not supported; supported: silu")


def _hf_window(raw: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, int]:
    """(window of every layer, longest context).

    Windows on only some layers are not computed: up to the window's length they hide nothing, so the context ends
    there, with every layer seeing all of it.
    """
    window, unlimited = int(raw.get("sliding_window") or 0), sys.maxsize
    if not window or family == "llama" or (family != "mistral" and not raw.get("use_sliding_window", False)):
        return None, unlimited
    kinds = raw.get("layer_types")
    if kinds is None:  # before layer_types, Qwen windowed the layers from max_window_layers on, Mistral every layer
        first = 0 if family == "mistral" else raw.get("max_window_layers", 0)
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    if set(kinds) == {"full_attention"}:
        return None, unlimited
    return (window, unlimited) if set(kinds) == {"sliding_attention"} else (None, window)


def config_from_gguf(meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """From GGUF metadata and the tensors' shapes (row-major, by GGUF name); biases and tying follow from the names."""
    architecture = meta.get("general.architecture", "(none named)")
    family = GGUF_ARCHITECTURES.get(architecture)
    if family is None:
        raise ModelError(f"GGUF architecture {architecture} is not supported; supported: {FAMILIES}")

    def get(key: str, *default: Any) -> Any:
        value = meta.get(f"{architecture}.{key}", *default)
        if value is None:
            raise ModelError(f"GGUF metadata has no {architecture}.{key}")
        return value

    if get("expert_count", 0):
        raise ModelError(f"mixture-of-experts models are not supported; supported: {FAMILIES}")
    embedding = shapes.get("token_embd.weight")
    if embedding is None:
        raise ModelError("the GGUF file has no tensor token_embd.weight")
    heads, hidden = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", hidden // heads)
    if get("rope.dimension_count", head_dim) != head_dim or get("attention.value_length", head_dim) != head_dim:
        raise ModelError("partial rotary embedding and value heads of another size are not supported")
    return ModelConfig(
        family=family,
        layers=get("block_count"),
        hidden=hidden,
        intermediate=get("feed_forward_length"),
        heads=heads,
        kv_heads=get("attention.head_count_kv", heads),
        head_dim=head_dim,
        vocab=embedding[0],
        max_position=get("context_length"),
        # GGUF holds float32: undo its rounding (9.999999747e-06), so that both formats of a model compute the same.
        norm_eps=float(f"{get('attention.layer_norm_rms_epsilon'):.6g}"),
        rope=RopeConfig.from_gguf(meta, architecture),
        window=get("attention.sliding_window", 0) or None,
        qkv_bias="blk.0.attn_q.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        mlp_bias="blk.0.ffn_down.bias" in shapes,
        qk_norm=family == "qwen3",
        tied_embeddings="output.weight" not in shapes,
    )
