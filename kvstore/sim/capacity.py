"""Capacities as a person gives them: a size of memory, or a number of blocks of the trace."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from ...proto.record import record_bytes
from ..options import parse_size
from ..tiers.nvme.log import LIVE_SHARE

SEGMENT_BYTES = 256 << 20  # NvmeTier's, unless it is told otherwise

_BLOCKS = re.compile(r"\s*(\d+)\s*blocks?\s*")


@dataclass(frozen=True, slots=True)
class Capacity:
    """text: as given."""

    text: str
    blocks: int

    def __str__(self) -> str:
        return f"{self.blocks:,} blocks" if "block" in self.text else f"{self.text} ({self.blocks:,} blocks)"


def parse_capacity(text: str, block_bytes: int) -> Capacity:
    """Of "8GiB" or "5859blocks". ValueError says what is wrong; a size that holds no block is."""
    return _parse(text, block_bytes, lambda size: size // block_bytes)


def parse_nvme_capacity(text: str, block_bytes: int) -> Capacity:
    """The same of an NVMe path, where a part of a size goes to record headers, to segments being written and to
    garbage that waits for being reclaimed. A number of blocks is that of live ones."""
    record = record_bytes(block_bytes, 1)  # up to 976 tokens a block make no difference
    return _parse(text, block_bytes, lambda size: int((size - 2 * SEGMENT_BYTES) * LIVE_SHARE) // record)


def _parse(text: str, block_bytes: int, fit: Callable[[int], int]) -> Capacity:
    found = _BLOCKS.fullmatch(text)
    blocks = int(found[1]) if found is not None else fit(parse_size(text))
    if blocks < 1:
        raise ValueError(f"{text!r} has no room for a block of {block_bytes} bytes")
    return Capacity(text.strip(), blocks)
