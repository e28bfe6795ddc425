"""Building Weights from a TensorSource, and the weights digest.

Tensors are dequantised, fused and reordered a layer at a time, layers in parallel. A file must hold exactly the
tensors its configuration implies: a missing one cannot be computed with, one too many would be silently left out.
"""

import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from .config import ModelConfig
from .errors import ModelError
from .linear import Linear
from .llama import Layer, Weights
from .sources import TensorSource

Progress = Callable[[float, str], None]

_NAMED_AT_MOST = 5
_DIGEST_VERSION = b"kvterrace weights 1"


def weights_digest(config: ModelConfig, source: TensorSource, dtype: torch.dtype) -> bytes:
    """SHA-256 of everything that makes KV: stored tensors, configuration, and the dtype they are computed in.

    Paths and names of files do not enter. Fields are length-prefixed, so that no two contents look alike.
    """
    digest = hashlib.sha256()

    def field(data: bytes | memoryview) -> None:
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)

    field(_DIGEST_VERSION)
    field(json.dumps(config.digest_fields() | {"dtype": str(dtype)}, sort_keys=True).encode())
    for name, kind, shape, data in source.content():
        field(json.dumps([name, kind, shape]).encode())
        field(data)
    return digest.digest()


def build_weights(
    config: ModelConfig, source: TensorSource, device: torch.device, dtype: torch.dtype, progress: Progress
) -> Weights:
    """Reads every tensor, onto `device` as `dtype`. progress(0..1, what) is called from the calling thread."""
    _check_tensors(config, source)

    def read(name: str) -> torch.Tensor:
        # Always a copy: a source may return memory of the file, which must be free to go.
        return source.read(name).to(device=device, dtype=dtype, copy=True)

    def linear(*names: str, bias: bool) -> Linear:
        fused = torch.cat([read(f"{name}.weight") for name in names])
        return Linear(fused, torch.cat([read(f"{name}.bias") for name in names]) if bias else None)

    def layer(index: int) -> Layer:
        prefix = f"model.layers.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        return Layer(
            input_norm=read(prefix + "input_layernorm.weight"),
            qkv=linear(*(f"{attention}{which}_proj" for which in "qkv"), bias=config.qkv_bias),
            output=linear(attention + "o_proj", bias=config.output_bias),
            post_norm=read(prefix + "post_attention_layernorm.weight"),
            gate_up=linear(mlp + "gate_proj", mlp + "up_proj", bias=config.mlp_bias),
            down=linear(mlp + "down_proj", bias=config.mlp_bias),
            q_norm=read(attention + "q_norm.weight") if config.qk_norm else None,
            k_norm=read(attention + "k_norm.weight") if config.qk_norm else None,
        )

    with torch.inference_mode(), ThreadPoolExecutor(torch.get_num_threads()) as pool:
        top = pool.submit(read, "model.embed_tokens.weight")
        futures = [pool.submit(layer, index) for index in range(config.layers)]
        layers: list[Layer] = []
        for future in futures:
            layers.append(future.result())
            progress(0.1 + 0.8 * len(layers) / config.layers, f"layer {len(layers)} of {config.layers}")
        embedding = top.result()
        head = Linear(embedding) if config.tied_embeddings else linear("lm_head", bias=False)
        return Weights(embedding, tuple(layers), read("model.norm.weight"), head)


def _check_tensors(config: ModelConfig, source: TensorSource) -> None:
    expected = _expected_shapes(config)
    given = {name: shape for name, shape in source.shapes.items() if not name.endswith("rotary_emb.inv_freq")}
    if config.tied_embeddings:
        given.pop("lm_head.weight", None)  # some writers store the tied copy too
    missing = sorted(expected.keys() - given.keys())
    if missing:
        raise ModelError(f"{len(missing)} tensors are missing, such as {_some(missing)}")
    unexpected = sorted(given.keys() - expected.keys())
    if unexpected:
        raise ModelError(
            f"{len(unexpected)} tensors do not belong to a {config.family} model of {config.layers} layers, "
            f"such as {_some(unexpected)}"
        )
    for name, shape in expected.items():
        if given[name] != shape:
            raise ModelError(f"tensor {name} has shape {list(given[name])}, the configuration implies {list(shape)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED_AT_MOST])


def _expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden, config.intermediate
    q_size, kv_size = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab, hidden)
    matrices = (
        ("self_attn.q_proj", q_size, hidden, config.qkv_bias),
        ("self_attn.k_proj", kv_size, hidden, config.qkv_bias),
        ("self_attn.v_proj", kv_size, hidden, config.qkv_bias),
        ("self_attn.o_proj", hidden, q_size, config.output_bias),
        ("mlp.gate_proj", inner, hidden, config.mlp_bias),
        ("mlp.up_proj", inner, hidden, config.mlp_bias),
        ("mlp.down_proj", hidden, inner, config.mlp_bias),
    )
    norms = [("input_layernorm", hidden), ("post_attention_layernorm", hidden)]
    if config.qk_norm:
        norms += [("self_attn.q_norm", config.head_dim), ("self_attn.k_norm", config.head_dim)]
    for index in range(config.layers):
        prefix = f"model.layers.{index}."
        for name, rows, columns, bias in matrices:
            shapes[f"{prefix}{name}.weight"] = (rows, columns)
            if bias:
                shapes[f"{prefix}{name}.bias"] = (rows,)
        for name, size in norms:
            shapes[f"{prefix}{name}.weight"] = (size,)
    return shapes
