"""Keyed: blocks found by the first bytes of their keys, as git finds commits."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass

from ..radix import walk
from .merged import Side
from .slices import Slices

MIN_KEY_BYTES = 4  # that a key may be shortened to
MAX_FOUND = 16  # blocks whose keys begin alike


@dataclass(frozen=True, slots=True)
class Found:
    """A block. tokens: packed, from the prompt's start to its end."""

    fingerprint: bytes
    key: bytes
    tokens: bytes


async def keyed_blocks(side: Side, key: bytes, slices: Slices) -> AsyncGenerator[int]:
    """Blocks of one tier's tree whose keys begin so; each is right until the caller gives the loop back. What came or
    went meanwhile may be missing."""
    number = 0
    while number < walk.numbers(side.index):
        blocks = walk.run(side.index, number)
        try:
            for _ in side.warm(int(blocks[-1])) if len(blocks) else ():
                await slices.breathe()
        except KeyError:
            continue  # it has left: what has its number now?
        blocks = walk.run(side.index, number)
        if len(blocks):
            side.key(int(blocks[-1]))
            for block, own in zip(blocks.tolist(), side.keys(blocks), strict=True):
                if own.startswith(key):
                    yield block
        number += 1
        await slices.breathe()
