"""LlamaModel: the decoder that Llama, SmolLM, Mistral, Qwen2 and Qwen3 share, over a paged KV pool.

Plain tensors and functions: nothing here is trained, moved or saved. Written for few, large operations: q, k and v
come from one matrix, gate and up from another, only the rows that are sampled go through the output matrix, and the
residual stream is added to in place. Owned by the engine's step thread.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ...kernels import AttentionBackend, Plan
from .config import ModelConfig
from .linear import Linear
from .rope import Rope, rotate_


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights of one decoder layer. Norm weights [hidden], q_norm and k_norm [head_dim] or None."""

    input_norm: torch.Tensor
    qkv: Linear  # hidden -> (heads + 2 kv_heads) * head_dim, in the order q, k, v
    output: Linear
    post_norm: torch.Tensor
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear
    q_norm: torch.Tensor | None = None
    k_norm: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Weights:
    """All of a model. embedding [vocab, hidden]; with tied embeddings, head holds a second copy in its own layout."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    head: Linear


class LlamaModel:
    """Runs on the device and in the dtype of its weights."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._weights = weights
        self._rope = Rope(config.rope, config.head_dim, self.device)

    @torch.inference_mode()
    def forward(
        self,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        plan: Plan,
        logits_rows: torch.Tensor,
        backend: AttentionBackend,
    ) -> torch.Tensor:
        """One step: writes the tokens' K and V into the pool that `plan` is for, returns logits.

        Args:
            tokens: int64 [T], the step's new tokens, sequence after sequence, as in the batch of `plan`.
            positions: int64 [T], each below config.max_position.
            logits_rows: int64 [R], which of the T rows to return logits for.

        Returns:
            float32 [R, vocab].
        """
        weights, eps = self._weights, self.config.norm_eps
        cos, sin = self._rope.angles(positions)
        x = F.embedding(tokens, weights.embedding)
        for index, layer in enumerate(weights.layers):
            q, k, v = self._project(layer, _norm(x, layer.input_norm, eps), cos, sin)
            x += layer.output(backend.attend(q, k, v, index, plan).reshape(len(tokens), -1))
            gate, up = layer.gate_up(_norm(x, layer.post_norm, eps)).chunk(2, dim=-1)
            x += layer.down(F.silu(gate).mul_(up))
        return weights.head(_norm(x[logits_rows], weights.norm, eps)).to(torch.float32)

    def _project(
        self, layer: Layer, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim], rotated, as views of one tensor."""
        config = self.config
        rotated = config.heads + config.kv_heads
        qkv = layer.qkv(x).view(len(x), rotated + config.kv_heads, config.head_dim)
        qk, v = qkv[:, :rotated], qkv[:, rotated:]
        q, k = qk[:, : config.heads], qk[:, config.heads :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q.copy_(_norm(q, layer.q_norm, config.norm_eps))
            k.copy_(_norm(k, layer.k_norm, config.norm_eps))
        rotate_(qk, cos, sin)
        return q, k, v


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm (Zhang and Sennrich 2019) over the last axis; torch computes it in float32 whatever the dtype."""
    return F.rms_norm(x, weight.shape, weight, eps)
