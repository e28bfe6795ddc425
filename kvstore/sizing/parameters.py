"""How many parameters a model has, from its configuration alone: to about two per cent, for models without files."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from .shape import STATE, LayerGroup

Raw = Mapping[str, Any]


def estimate(raw: Raw, layers: Sequence[LayerGroup]) -> int:
    """Weights of embeddings, attention and feed-forward, experts included. 0: layers that keep a state are of too many
    kinds to be counted, or a size is missing."""
    hidden = _get(raw, "hidden_size", "n_embd", "d_model")
    vocab = _get(raw, "vocab_size", "padded_vocab_size")
    if not hidden or not vocab or any(layer.kind == STATE for layer in layers):
        return 0
    embeddings = hidden * vocab * (1 if raw.get("tie_word_embeddings", _ties(raw)) else 2)
    attention = sum(_attention(raw, hidden, layer) for layer in layers)
    return embeddings + attention + sum(_feed_forward(raw, hidden, number) for number in range(len(layers)))


def _ties(raw: Raw) -> bool:
    """Families whose configuration leaves their shared embedding unsaid."""
    return str(raw.get("model_type")) in {
        "gpt2",
        "gemma",
        "gemma2",
        "gemma3",
        "gemma3_text",
        "cohere",
        "cohere2",
        "falcon",
    }


def _attention(raw: Raw, hidden: int, layer: LayerGroup) -> int:
    heads = _get(raw, "num_attention_heads", "n_head", "n_heads")
    if not raw.get("kv_lora_rank"):
        queries = hidden * heads * layer.key_dim
        outputs = heads * layer.value_dim * hidden
        return queries + outputs + hidden * layer.kv_heads * (layer.key_dim + layer.value_dim)
    rank, rope = int(raw["kv_lora_rank"]), int(raw.get("qk_rope_head_dim") or 0)
    plain, value = int(raw.get("qk_nope_head_dim") or 0), int(raw.get("v_head_dim") or 0)
    query_rank = int(raw.get("q_lora_rank") or 0)
    wide = heads * (plain + rope)
    queries = hidden * query_rank + query_rank * wide if query_rank else hidden * wide
    return queries + hidden * (rank + rope) + rank * heads * (plain + value) + heads * value * hidden


def _feed_forward(raw: Raw, hidden: int, number: int) -> int:
    width = _get(raw, "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim") or 4 * hidden
    matrices = 2 if str(raw.get("model_type")) in {"gpt2", "gpt_neox", "falcon", "phi", "gpt_bigcode", "opt"} else 3
    experts = _get(raw, "num_local_experts", "n_routed_experts", "num_experts")
    sparse = experts and number >= int(raw.get("first_k_dense_replace") or 0)
    if not sparse:
        return matrices * hidden * width
    own = _get(raw, "moe_intermediate_size") or width
    shared = int(raw.get("n_shared_experts") or 0) * own + _get(raw, "shared_expert_intermediate_size")
    return matrices * hidden * (experts * own + shared) + hidden * experts


def _get(raw: Raw, *names: str) -> int:
    for name in names:
        value = raw.get(name)
        if isinstance(value, list) and value:
            value = cast("list[object]", value)[0]
        if isinstance(value, int):
            return value
    return 0
