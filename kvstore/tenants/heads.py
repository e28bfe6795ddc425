"""Heads: the beginnings of prompts that an operator lets tenants share.

A block may be shared when the whole prompt up to its end is the beginning of a listed head: the token ids are compared,
not a hash of them. Whoever writes a head writes what all others read, so each names the tenants that may.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...radix import TOKEN_BYTES, PrefixIndex

ANYONE = "*"


@dataclass(frozen=True, slots=True)
class Head:
    """tokens: packed. written_by: names of the tenants whose blocks of it others may read; ANYONE among them: all."""

    tokens: bytes
    written_by: frozenset[str]

    def from_(self, tenant: str) -> bool:
        """Whether that tenant may write it."""
        return tenant in self.written_by or ANYONE in self.written_by


class HeadList:
    """Heads as blocks of `block_tokens`: a tree over the full blocks of all, so that looking up a prompt is O(tokens)
    whatever their number."""

    def __init__(self, heads: Sequence[Head], block_tokens: int) -> None:
        self._tree = PrefixIndex(bytes(32), block_tokens=block_tokens)
        self.longest = 0
        for head in heads:
            count = len(head.tokens) // (block_tokens * TOKEN_BYTES)
            self.longest = max(self.longest, count)
            if count:
                self._tree.insert(head.tokens, np.zeros(count, dtype=np.int64))

    def blocks(self, tokens: bytes) -> int:
        """Leading full blocks of a prompt that lie within a head."""
        return len(self._tree.match(tokens, limit=self.longest)) if self.longest else 0
