"""Retention between requests and the index: ranges of a prompt onto its blocks, and back."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..proto import DEFAULT_RETENTION, Retention, RetentionRange
from ..radix import PrefixIndex

_DEFAULT = (DEFAULT_RETENTION.priority, DEFAULT_RETENTION.ttl_s, DEFAULT_RETENTION.pinned)


def retain(index: PrefixIndex, path: NDArray[np.int32], ranges: Sequence[RetentionRange]) -> int:
    """Set the retention of a path's blocks, root first, by ordinal; how many were named."""
    named = 0
    for each in ranges:
        blocks, wish = path[each.start : each.end], each.retention
        index.retain(blocks, priority=wish.priority, ttl_s=wish.ttl_s, pinned=wish.pinned)
        named += len(blocks)
    return named


def retention_of(index: PrefixIndex, blocks: NDArray[np.int32]) -> list[Retention]:
    """Of each block."""
    said = index.retention(blocks)
    rows = zip(said.priority.tolist(), said.ttl_s.tolist(), said.pinned.tolist(), strict=True)
    return [DEFAULT_RETENTION if row == _DEFAULT else Retention(*row) for row in rows]
