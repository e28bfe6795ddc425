"""From what a request says about its tokens to what the store keeps of its blocks."""

from collections.abc import Iterable

from ..connector import Retention, RetentionRange
from .request import TokenRetention


def block_ranges(
    retention: Iterable[TokenRetention], prompt_tokens: int, block_tokens: int
) -> tuple[RetentionRange, ...]:
    """Ranges of block ordinals, in the given order. A block is in a range when its first token is; what lies beyond the
    prompt is ignored."""
    ranges: list[RetentionRange] = []
    for part in retention:
        end = prompt_tokens if part.end is None else min(part.end, prompt_tokens)
        first, stop = -(-part.start // block_tokens), -(-end // block_tokens)
        if first < stop:
            ranges.append(RetentionRange(first, stop, Retention(part.priority, part.ttl_s, part.pin)))
    return tuple(ranges)
