"""What no policy can beat on a trace: a cache without limit, and the best use of a limited one with hindsight.

Both answer with hits per request, blocks of the leading cached run, so that they compare with a replay of the same
trace.
"""

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from .trace import Trace

Hits = NDArray[np.int64]
_NEVER = 1 << 62


def infinite_hits(trace: Trace) -> Hits:
    """Hits of a cache that keeps everything. A block was stored before if and only if its whole prefix was."""
    seen = np.zeros(trace.unique, dtype=np.bool_)
    hits = np.zeros(len(trace.requests), dtype=np.int64)
    for i, request in enumerate(trace.requests):
        blocks = np.frombuffer(request.blocks, dtype=np.int32)
        hits[i] = int(seen[blocks].sum())
        seen[blocks] = True
    return hits


def optimal_hits(trace: Trace, capacity_blocks: int) -> Hits:
    """Hits of the offline optimum with bypass: keep the blocks whose next use is nearest, the newcomer considered too
    (Belady, "A study of replacement algorithms for a virtual-storage computer", 1966).

    A prefix is always used before, and whenever, what follows it is used; so what this keeps is closed under prefixes,
    and the number of cached blocks of a prompt is the length of its leading run. O(accesses log capacity).
    """
    blocks: list[int] = np.frombuffer(b"".join(request.blocks for request in trace.requests), dtype=np.int32).tolist()
    next_use = _next_uses(blocks, trace.unique)
    kept, queue = dict[int, int](), list[tuple[int, int]]()  # block -> next use; (-next use, block), stale ones too
    hits = np.zeros(len(trace.requests), dtype=np.int64)
    start = 0
    for i, request in enumerate(trace.requests):
        found, stop = 0, start + request.count
        for at in range(start, stop):
            block, later = blocks[at], next_use[at]
            if kept.pop(block, 0):
                found += 1
            if later == _NEVER or (len(kept) >= capacity_blocks and not _evict_later(kept, queue, later)):
                continue
            kept[block] = later
            heappush(queue, (-later, block))
        hits[i], start = found, stop
    return hits


def _evict_later(kept: dict[int, int], queue: list[tuple[int, int]], use: int) -> bool:
    """Drop the block whose next use is farthest, if that is after `use`."""
    while queue:
        farthest, block = -queue[0][0], queue[0][1]
        if kept.get(block) != farthest:
            heappop(queue)
        elif farthest <= use:
            return False
        else:
            heappop(queue)
            del kept[block]
            return True
    return False  # no capacity at all


def _next_uses(blocks: list[int], unique: int) -> list[int]:
    """For each access, the position of the next one to the same block."""
    last, following = [_NEVER] * unique, [_NEVER] * len(blocks)
    for at in range(len(blocks) - 1, -1, -1):
        following[at] = last[blocks[at]]
        last[blocks[at]] = at
    return following
