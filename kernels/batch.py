"""What attention needs to know of one step, and the two verbs of a backend that computes it.

The pool is one tensor `[num_pages, kv_heads, layers, 2, block_tokens, head_dim]`, contiguous; a page holds one block.
"""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from torch import Tensor


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """One step's sequences, each with zero or more new tokens at the end of its context. Tensors on the pool's device.

    query_starts: int32 [B+1], offsets of the sequences on the flat axis of new tokens (T rows in all).
    context_lens: int32 [B], tokens in each context, this step's included.
    block_tables: int32 [B, max_pages], pages of each context in order, padded with 0.
    slot_mapping: int64 [T], `page * block_tokens + offset` where each new token's K and V go; no two alike.
    max_query, max_context: the largest of the counts and of context_lens.

    Rows from query_starts[B] on are padding: their slot is -1, nothing is written for them and their result is 0.
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
    """Causal attention of new tokens over paged contexts. Keeps nothing but scratch memory; used by one thread.

    What a page holds beyond its sequence's context is never read into a result, NaN included.
    """

    def plan(self, batch: PagedBatch, pool: Tensor, *, window: int | None = None) -> Plan:
        """Everything that depends on the batch only (masks, indices), made once for all layers.

        Args:
            window: each token sees only the last `window` positions, itself included (Mistral, Jiang et al. 2023);
                None: all of them. A model whose layers differ makes one plan for each window.

        Raises:
            ValueError: window below 1.
        """
        ...

    def attend(self, q: Tensor, k: Tensor, v: Tensor, layer: int, plan: Plan) -> Tensor:
        """Write this step's k and v into the pool's `layer`, attend, return `[T, heads, head_dim]`.

        q: `[T, heads, head_dim]`; k, v: `[T, kv_heads, head_dim]`; the pool's dtype, last axis contiguous. Query head h
        reads K/V head `h // (heads / kv_heads)`. Scores are scaled by the backend's `scale`, or `head_dim ** -0.5`.
        """
        ...


def check_window(window: int | None) -> None:
    """ValueError unless `window` is None or leaves a token at least itself to see."""
    if window is not None and window < 1:
        raise ValueError(f"window is {window}; a token sees at least itself, so it must be 1 or more")
