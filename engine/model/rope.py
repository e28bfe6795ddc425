"""Rotary position embedding (Su et al. 2021, RoFormer) and its context extensions, with frequencies that never change.

A cached key was rotated once, at its position. It stays valid only if the frequencies do not depend on how long the
sequence has become. "dynamic" NTK scaling does depend on it, beyond the trained length; up to the trained length it
is the plain embedding. So a dynamic model runs with plain frequencies, exactly, and its context ends at
max_position_embeddings. "longrope" switches frequencies at the trained length and is refused.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from .errors import ModelError

KINDS = ("default", "linear", "dynamic", "yarn", "llama3")


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """kind: one of KINDS. `original_max_position` (tokens) and below matter to yarn and llama3 only.

    attention_factor None: YaRN's own, 0.1 ln(factor) + 1. dim_factors: frequency divisors by pair, or ().
    """

    theta: float
    kind: str = "default"
    factor: float = 1.0
    original_max_position: int = 0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    dim_factors: tuple[float, ...] = ()

    @property
    def extended_positions(self) -> int:
        """How far YaRN reaches: configurations that turn it on often leave max_position_embeddings as trained."""
        return int(self.original_max_position * self.factor) if self.kind == "yarn" else 0

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], *, theta: float, max_position: int) -> Self:
        """From config.json's rope_parameters (or rope_scaling), both spellings of the type."""
        kind = raw.get("rope_type") or raw.get("type") or "default"
        if kind not in KINDS:
            raise ModelError(f"rope scaling {kind} is not supported; supported: {', '.join(KINDS)}")
        if raw.get("partial_rotary_factor", 1.0) != 1.0:
            raise ModelError("partial rotary embedding is not supported")
        if kind in ("default", "dynamic"):
            return cls(theta)
        try:
            factor, original = float(raw["factor"]), int(raw.get("original_max_position_embeddings") or max_position)
            if kind == "linear":
                return cls(theta, kind, factor)
            if kind == "llama3":
                low, high = float(raw["low_freq_factor"]), float(raw["high_freq_factor"])
                return cls(theta, kind, factor, original, low_freq_factor=low, high_freq_factor=high)
        except KeyError as missing:
            raise ModelError(f"rope scaling {kind} has no {missing}") from None
        return cls(
            theta,
            kind,
            factor,
            original,
            attention_factor=_yarn_attention(raw, factor),
            beta_fast=float(raw.get("beta_fast") or 32.0),
            beta_slow=float(raw.get("beta_slow") or 1.0),
            truncate=bool(raw.get("truncate", True)),
        )

    @classmethod
    def from_gguf(cls, meta: Mapping[str, Any], architecture: str) -> Self:
        """From GGUF metadata. llama3 scaling is not in it, but in the tensor rope_freqs.weight."""
        theta = float(meta.get(f"{architecture}.rope.freq_base", 10000.0))
        kind = meta.get(f"{architecture}.rope.scaling.type", "none")
        factor = float(meta.get(f"{architecture}.rope.scaling.factor", 1.0))
        if kind == "none" or factor in (0.0, 1.0):
            return cls(theta)
        if kind == "linear":
            return cls(theta, kind, factor)
        if kind != "yarn":
            raise ModelError(f"rope scaling {kind} is not supported in GGUF files; supported: none, linear, yarn")
        original = meta.get(f"{architecture}.rope.scaling.original_context_length")
        if not original:
            raise ModelError(f"GGUF metadata has no {architecture}.rope.scaling.original_context_length")
        scale = float(meta.get(f"{architecture}.rope.scaling.attn_factor", 1.0))
        return cls(theta, kind, factor, int(original), attention_factor=scale * (0.1 * math.log(factor) + 1.0))


def _yarn_attention(raw: Mapping[str, Any], factor: float) -> float | None:
    if raw.get("attention_factor") is not None:
        return float(raw["attention_factor"])
    mscale, all_dim = raw.get("mscale"), raw.get("mscale_all_dim")
    if mscale and all_dim and factor > 1:
        return (0.1 * mscale * math.log(factor) + 1.0) / (0.1 * all_dim * math.log(factor) + 1.0)
    return None


class Rope:
    """The rotation of one model. `inverse_frequencies` float32 [head_dim / 2]; `scale` multiplies cos and sin."""

    def __init__(self, config: RopeConfig, head_dim: int, device: torch.device) -> None:
        plain = 1.0 / (config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim))
        self.scale = 1.0
        if config.kind == "linear":
            plain = plain / config.factor
        elif config.kind == "llama3":
            plain = _llama3(plain, config)
        elif config.kind == "yarn":
            plain = _yarn(plain, config, head_dim)
            default = 0.1 * math.log(config.factor) + 1.0 if config.factor > 1 else 1.0
            self.scale = default if config.attention_factor is None else config.attention_factor
        if config.dim_factors:
            plain = plain / torch.tensor(config.dim_factors)
        self.inverse_frequencies = plain.to(device)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, sin), float32 [T, 1, head_dim / 2], of positions int64 [T].

        Computed once a step, for all layers. A table would save under 0.1% of a step, and would have to be grown,
        which needs the largest position on the host.
        """
        angles = torch.outer(positions.to(torch.float32), self.inverse_frequencies).unsqueeze_(1)
        cos, sin = angles.cos(), angles.sin_()
        return (cos, sin) if self.scale == 1.0 else (cos.mul_(self.scale), sin.mul_(self.scale))


def rotate_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [T, heads, head_dim] in place; dimension i is paired with i + head_dim / 2.

    In place, since in a long prefill the page faults of a fresh tensor cost more than the arithmetic.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    turned = torch.addcmul(first * cos, second, sin, value=-1)
    second.mul_(cos).addcmul_(first, sin)
    first.copy_(turned)


def _llama3(plain: torch.Tensor, config: RopeConfig) -> torch.Tensor:
    """Llama 3.1: long wavelengths divided by factor, short ones kept, a smooth blend between."""
    turns = config.original_max_position * plain / (2 * math.pi)  # rotations within the trained context
    keep = ((turns - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor)).clamp(0, 1)
    return (1 - keep) * plain / config.factor + keep * plain


def _yarn(plain: torch.Tensor, config: RopeConfig, head_dim: int) -> torch.Tensor:
    """YaRN (Peng et al. 2023): interpolate the slow dimensions, extrapolate the fast, ramp between."""

    def dimension(rotations: float) -> float:
        span = config.original_max_position / (rotations * 2 * math.pi)
        return head_dim * math.log(span) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 0.001  # a ramp of no width would divide by zero
    slow = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / config.factor * slow + plain * (1 - slow)
