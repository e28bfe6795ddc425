"""From a config.json, of whatever family, to a ModelShape. Names of fields differ between families, their meaning does
not: the aliases are below. What is not understood is an error that names the field, never a guess."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from .parameters import estimate
from .shape import FULL, STATE, WINDOW, LayerGroup, ModelShape, SizingError, dtype_name, grouped

Raw = Mapping[str, Any]

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "model_dim")
_KV_HEADS = (
    "num_key_value_heads",
    "num_kv_heads",
    "n_head_kv",
    "multi_query_group_num",
    "num_key_value_heads_per_layer",
)
_HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")
_CONTEXT = ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "n_ctx", "max_sequence_length")

_FULL_NAMES = {"full_attention", "attention", "global", "full"}
_WINDOW_NAMES = {"sliding_attention", "chunked_attention", "local_attention", "local", "sliding_window"}
_STATE_NAMES = {"linear_attention", "mamba", "mamba2", "recurrent", "conv", "ssm", "lightning_attention"}
#: Families that window all layers but every nth, where the configuration does not list them: n.
_WINDOW_PATTERNS = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
#: Families whose sliding_window is obeyed without being asked for.
_WINDOWED = {"mistral", "mixtral", "phi3", "starcoder2", "gemma2", "gemma3", "gemma3_text", "cohere2", "gpt_oss"}


def shape_of(raw: Raw, name: str) -> ModelShape:
    """SizingError for what has no KV, or keeps it in a way that is not known here."""
    whole, raw = raw, _text_part(raw)
    family = str(raw.get("model_type") or whole.get("model_type") or "")
    if raw.get("is_encoder_decoder"):
        raise SizingError(
            f"{name} is an encoder-decoder model ({family}); only decoders keep a prefix that can be shared"
        )
    layers = _number(raw, _LAYERS, name)
    each = _layers(raw, family, layers, name)
    if not any(layer.kind != STATE for layer in each):
        raise SizingError(f"{name} ({family}) has no attention layer: there is no KV to cache")
    groups = grouped(each)
    notes = [*_notes(raw, groups)]
    if raw is not whole:
        notes.append("of the text model alone; its image or audio encoder needs memory of its own")
    quantised, bits, dtype = _weight_dtype(whole, raw)
    if quantised:
        notes.append(f"weights are quantised ({quantised}); KV is not, unless --kv-dtype says so")
    context = next((int(raw[key]) for key in _CONTEXT if isinstance(raw.get(key), int)), 0)
    return ModelShape(
        name=name,
        family=family or "unknown",
        groups=groups,
        max_context=context,
        dtype=dtype,
        weight_bits=bits,
        parameters=estimate(raw, each),
        notes=tuple(notes),
    )


def _text_part(raw: Raw) -> Raw:
    """The language model's own configuration, within that of a multi-modal one."""
    if not any(key in raw for key in _LAYERS):
        for key in ("text_config", "llm_config", "language_config", "thinker_config"):
            if isinstance(raw.get(key), dict):
                return _text_part(cast("Raw", raw[key]))
    return raw


def _layers(raw: Raw, family: str, layers: int, name: str) -> list[LayerGroup]:
    """One entry a layer, in order."""
    kinds = _kinds(raw, family, layers, name)
    shared = int(raw.get("num_kv_shared_layers") or 0)  # the last ones read the KV of earlier ones
    if shared:
        kinds = kinds[: layers - shared]
    if all(kind == STATE for kind in kinds):
        return [LayerGroup(STATE, 1) for _ in kinds]
    heads = _kv_heads(raw, family, len(kinds), name)
    key_dim, value_dim = _dims(raw, name)
    window = _window(raw)
    return [
        LayerGroup(STATE, 1)
        if kind == STATE or not count
        else LayerGroup(kind, 1, count, key_dim, value_dim, window if kind == WINDOW else 0)
        for kind, count in zip(kinds, heads, strict=True)
    ]


def _kinds(raw: Raw, family: str, layers: int, name: str) -> list[str]:
    listed = raw.get("layer_types") or raw.get("layers_block_type") or raw.get("block_types") or raw.get("_block_types")
    if listed:
        return _named(cast("Sequence[object]", listed), layers, name)
    if isinstance(raw.get("hybrid_override_pattern"), str):  # M mamba, * attention, - no mixer
        pattern = [{"*": FULL, "M": STATE}.get(mark, "") for mark in raw["hybrid_override_pattern"]]
        return [kind or STATE for kind in pattern]
    if isinstance(raw.get("attn_layer_indices"), list):
        chosen = set(cast("list[int]", raw["attn_layer_indices"]))
        return [FULL if layer in chosen else STATE for layer in range(layers)]
    if raw.get("attn_layer_period"):
        period, offset = int(raw["attn_layer_period"]), int(raw.get("attn_layer_offset") or 0)
        return [FULL if layer % period == offset else STATE for layer in range(layers)]
    if raw.get("full_attention_interval"):
        every = int(raw["full_attention_interval"])
        return [FULL if (layer + 1) % every == 0 else STATE for layer in range(layers)]
    if family in {"mamba", "mamba2", "falcon_mamba", "rwkv", "rwkv5", "rwkv6"}:
        return [STATE] * layers
    return _windows(raw, family, layers)


def _named(listed: Sequence[object], layers: int, name: str) -> list[str]:
    kinds: list[str] = []
    for said in listed:
        word = str(said)
        if word in _FULL_NAMES:
            kinds.append(FULL)
        elif word in _WINDOW_NAMES:
            kinds.append(WINDOW)
        elif word in _STATE_NAMES:
            kinds.append(STATE)
        else:
            raise SizingError(f"{name}: a layer of the kind {word!r} is not known here; its KV cannot be sized")
    return [kinds[layer % len(kinds)] for layer in range(layers)]  # a short list is a pattern


def _windows(raw: Raw, family: str, layers: int) -> list[str]:
    """Of a model that does not list its layers."""
    if raw.get("attention_chunk_size"):
        listed = cast("list[int]", raw.get("no_rope_layers") or [])
        every = int(raw.get("no_rope_layer_interval") or 4)
        roped = listed if len(listed) == layers else [(layer + 1) % every for layer in range(layers)]
        return [WINDOW if each else FULL for each in roped]
    if not _window(raw) or not (raw.get("use_sliding_window") or family in _WINDOWED):
        return [FULL] * layers
    every = int(raw.get("sliding_window_pattern") or _WINDOW_PATTERNS.get(family, 0))
    if every:
        return [FULL if (layer + 1) % every == 0 else WINDOW for layer in range(layers)]
    first = int(raw.get("max_window_layers") or 0) if family.startswith("qwen2") else 0
    return [WINDOW if layer >= first else FULL for layer in range(layers)]


def _window(raw: Raw) -> int:
    return int(raw.get("sliding_window") or raw.get("attention_chunk_size") or raw.get("attention_window_size") or 0)


def _kv_heads(raw: Raw, family: str, layers: int, name: str) -> list[int]:
    """One number a layer."""
    if raw.get("kv_lora_rank"):
        return [1] * layers
    if isinstance(raw.get("block_configs"), list):  # layers of their own: some without attention
        return [_block_heads(cast("Raw", block), raw, name) for block in cast("list[object]", raw["block_configs"])]
    attention = raw.get("attn_config")
    if isinstance(attention, dict) and cast("Raw", attention).get("kv_n_heads"):
        return [int(cast("Raw", attention)["kv_n_heads"])] * layers
    one_head = raw.get("multi_query") and not raw.get("new_decoder_architecture") and family != "chatglm"
    if one_head:
        return [1] * layers
    said = next((raw[key] for key in _KV_HEADS if raw.get(key) is not None), None)
    if isinstance(said, list):
        return [int(count) for count in cast("list[int]", said)][:layers]
    return [int(said) if said is not None else _number(raw, _HEADS, name)] * layers


def _block_heads(block: Raw, raw: Raw, name: str) -> int:
    attention = block.get("attention")
    if not isinstance(attention, dict):
        raise SizingError(f"{name}: block_configs without attention cannot be sized")
    group = cast("Raw", attention).get("n_heads_in_group")
    return _number(raw, _HEADS, name) // int(group) if group else 0


def _dims(raw: Raw, name: str) -> tuple[int, int]:
    """Elements of a key and of a value, a head; of MLA those of the latent, and 0."""
    if raw.get("kv_lora_rank"):
        return int(raw["kv_lora_rank"]) + int(raw.get("qk_rope_head_dim") or 0), 0
    said = next((raw[key] for key in _HEAD_DIM if raw.get(key)), None)
    if said is None:
        hidden, heads = _number(raw, _HIDDEN, name), _number(raw, _HEADS, name)
        said = hidden // heads
    return int(said), int(raw.get("v_head_dim") or said)


def _weight_dtype(whole: Raw, raw: Raw) -> tuple[str, int, str]:
    """(method of quantisation or "", its bits or 0, dtype of what is not quantised or "")."""
    quantised = whole.get("quantization_config") or raw.get("quantization_config")
    said = raw.get("dtype") or raw.get("torch_dtype") or whole.get("dtype") or whole.get("torch_dtype") or ""
    if not isinstance(quantised, dict):
        return "", 0, dtype_name(str(said))
    how = cast("Raw", quantised)
    method = str(how.get("quant_method") or "unknown")
    bits = how.get("bits") or how.get("w_bit") or {"fp8": 8, "mxfp4": 4, "fbgemm_fp8": 8}.get(method, 0)
    if how.get("load_in_4bit") or how.get("load_in_8bit"):
        bits = 4 if how.get("load_in_4bit") else 8
    return method, int(bits) if isinstance(bits, int) else 0, dtype_name(str(said))


def _notes(raw: Raw, groups: Sequence[LayerGroup]) -> list[str]:
    notes: list[str] = []
    total = sum(group.layers for group in groups)
    windowed = [group for group in groups if group.kind == WINDOW]
    if windowed:
        count = sum(group.layers for group in windowed)
        notes.append(
            f"{count} of {total} layers see a window of {windowed[0].window:,} tokens; an engine may keep that much of "
            "them, a store keeps every layer of a block"
        )
    states = sum(group.layers for group in groups if group.kind == STATE)
    if states:
        notes.append(
            f"{states} of {total} layers keep a state or nothing, not KV: their memory is not counted here, and a "
            "prefix's KV without that state must not be reused"
        )
    if any(group.latent for group in groups):
        notes.append(
            "MLA: one latent a token and layer instead of keys and values; every tensor-parallel rank has it all"
        )
    if raw.get("index_head_dim"):
        notes.append("the keys of its sparse-attention index are not counted")
    if raw.get("num_kv_shared_layers"):
        notes.append(f"the last {raw['num_kv_shared_layers']} layers reuse the KV of earlier ones")
    return notes


def _number(raw: Raw, names: Sequence[str], name: str) -> int:
    for key in names:
        value = raw.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
        if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,9}", value):
            return int(value)
    raise SizingError(
        f"{name}: the configuration says none of {', '.join(names)}; is it a language model's config.json?"
    )
