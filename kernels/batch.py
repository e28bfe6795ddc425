"""What attention needs to know of one step, and the two verbs of a backend that computes it.

The pool is one tensor `[num_pages, kv_heads, layers, 2, block_tokens, head_dim]`, contiguous; a page holds one block.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """One step's sequences, each with `query` new tokens at the end of its context. Tensors on the pool's device.

    query_starts: int32 [B+1], offsets of the sequences on the flat axis of new tokens (T in all).
    context_lens: int32 [B], tokens in each context, this step's included.
    block_tables: int32 [B, max_pages], pages of each context in order, padded with 0.
    slot_mapping: int64 [T], `page * block_tokens + offset` where each new token's K and V go; no two alike.
    """

    query_starts: Tensor
    context_lens: Tensor
    block_tables: Tensor
    slot_mapping: Tensor
    max_query: int
    max_context: int


Plan: TypeAlias = Any
"""A backend's own: made once a step by `plan`, read by each layer's `attend`."""


class AttentionBackend(Protocol):
    """Causal attention of new tokens over paged contexts. Holds nothing between steps; used by one thread."""

    def plan(self, batch: PagedBatch, pool: Tensor) -> Plan:
        """Everything that depends on the batch only (masks, indices), made once for all layers."""
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, plan: Plan) -> Tensor:
        """Write this step's k and v into the pool's `layer`, attend, return `[T, heads, head_dim]`.

        q: `[T, heads, head_dim]`; k, v: `[T, kv_heads, head_dim]`; the pool's dtype. Query head h reads
        K/V head `h // (heads / kv_heads)`. Scores are scaled by `head_dim ** -0.5`.
        """
        ...
