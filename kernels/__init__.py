"""Paged attention, block moves and lossy block codecs, each beside its plain reference. Imports nothing of ours; Triton
only when used."""

import torch

from .batch import AttentionBackend, PagedBatch, Plan
from .cpu import CpuAttention
from .layouts import VLLM_LAYOUT, CacheLayout, LayoutMismatch, gather_blocks, layout_roundtrip, scatter_blocks
from .quantise import BlockCodec
from .reference import ReferenceAttention

__all__ = [
    "VLLM_LAYOUT",
    "AttentionBackend",
    "BlockCodec",
    "CacheLayout",
    "CpuAttention",
    "LayoutMismatch",
    "PagedBatch",
    "Plan",
    "ReferenceAttention",
    "gather_blocks",
    "layout_roundtrip",
    "make_backend",
    "scatter_blocks",
]


def make_backend(device: torch.device | str, *, scale: float | None = None) -> AttentionBackend:
    """The backend for a device: SDPA on CPU, Triton elsewhere. scale: of scores, `head_dim ** -0.5` if None."""
    if torch.device(device).type == "cpu":
        return CpuAttention(scale=scale)
    from .triton_attention import TritonAttention  # noqa: PLC0415  # Triton is optional

    return TritonAttention(scale=scale)
