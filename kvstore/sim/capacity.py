"""Capacities as a person gives them: a size of memory, or a number of blocks of the trace."""

import re
from dataclasses import dataclass

from ..config import parse_size

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
    found = _BLOCKS.fullmatch(text)
    if found is not None:
        blocks = int(found[1])
        if not blocks:
            raise ValueError("0 blocks are no capacity")
        return Capacity(text.strip(), blocks)
    size = parse_size(text)
    if size < block_bytes:
        raise ValueError(f"{text!r} is less than one block of {block_bytes} bytes")
    return Capacity(text.strip(), size // block_bytes)
