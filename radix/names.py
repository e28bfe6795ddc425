"""Names: 64-bit hashes of a block and all above it, by which policies know a block again that had left."""

from array import array
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray


def name_run(above: int, run: memoryview, count: int, extras: bytes) -> NDArray[np.uint64]:
    """Names of the `count` blocks of a run under a block named `above` (0: none). 0.3 us a block of 16 tokens.

    Unlike keys they are cheap and may collide: they order evictions and identify nothing."""
    digest, names, tokens, name = xxhash.xxh3_64_intdigest, array("Q"), bytes(run), above
    size = len(tokens) // count
    if extras:
        name = digest(extras, name)
    for at in range(0, len(tokens), size):
        name = digest(tokens[at : at + size], name)
        names.append(name)
    return np.frombuffer(names, dtype=np.uint64)


class Memory:
    """What is remembered of blocks that left: hits (0..3) and time of last use, by name, 8 bytes a place.

    A direct-mapped table of 4 to 8 places for each block of the cache; a newcomer overwrites, so that an entry lives
    for about that many evictions, and nothing is ever searched, shifted or swept. Growing forgets everything: a cache
    that grows has evicted little. A place is fingerprint (30 bits) | hits (2) | time (32); 0 is empty."""

    def __init__(self) -> None:
        self._places: NDArray[np.uint64] = np.zeros(256, dtype=np.uint64)

    def reserve(self, blocks: int) -> None:
        """Have at least four places for each of so many blocks; amortised O(1) when called with every new size."""
        if 4 * blocks > len(self._places):
            self._places = np.zeros(1 << (4 * blocks - 1).bit_length(), dtype=np.uint64)

    def add(self, names: NDArray[np.uint64], hits: NDArray[Any], times: NDArray[Any]) -> None:
        """Remember these; times modulo 2**32."""
        facts = hits.astype(np.uint64) << np.uint64(32) | times.astype(np.uint64) & _LOW
        self._places[self._at(names)] = names & _FINGERPRINT | facts

    def take(self, names: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.uint8], NDArray[np.uint32]]:
        """Which are remembered, and hits and time of those; they are forgotten."""
        at = self._at(names)
        found = self._places[at]
        known = (found != 0) & ((found ^ names) < _HITS)
        self._places[at[known]] = 0
        return known, *_facts(found[known])

    def sample(self, first: int, step: int) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
        """Hits and time of what is remembered in every `step`-th place."""
        found = self._places[first::step]
        return _facts(found[found != 0])

    def _at(self, names: NDArray[np.uint64]) -> NDArray[np.intp]:
        return (names & np.uint64(len(self._places) - 1)).astype(np.intp)


_LOW = np.uint64(2**32 - 1)
_HITS = np.uint64(1 << 34)  # one more than what hits and time can hold
_FINGERPRINT = np.uint64(2**64 - 2**34)


def _facts(places: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.uint32]]:
    return (places >> np.uint64(32)).astype(np.uint8) & np.uint8(3), places.astype(np.uint32)
