"""Memory and processor: copies, checksums, block keys; one thread each."""

import hashlib
import mmap
from collections.abc import Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from ...radix import block_keys, pack_tokens
from .row import GB, Row, take_turns

BYTES = 64 << 20  # far beyond caches
_PARENT = bytes(32)
_PIECE_BYTES = (1 << 20) + 8  # no page is like its neighbour
TOKENS, BLOCK_TOKENS = 65_536, 16


def measure_memory(budget_s: float) -> Iterator[Row]:
    """About budget_s seconds for each row."""
    source, target = pages(BYTES), pages(BYTES)
    (copy_s,) = take_turns([lambda: np.copyto(target, source)], budget_s)
    yield Row("memcpy, one thread", BYTES / copy_s / GB, "GB/s")
    words = source.view(np.uint64)
    hash_s, read_s = take_turns([lambda: xxhash.xxh3_64_intdigest(source.data), words.max], budget_s)
    yield Row("checksum of blocks, xxh3", BYTES / hash_s / GB, "GB/s", BYTES / read_s / GB, "reading memory once")
    tokens = pack_tokens(range(TOKENS))
    key_s, sha_s = take_turns(
        [lambda: block_keys(bytes(32), tokens, BLOCK_TOKENS), lambda: _each_alone(tokens)], budget_s
    )
    yield Row(
        "keys of new blocks, SHA-256",
        TOKENS / key_s / 1e6,
        "M tokens/s",
        TOKENS / sha_s / 1e6,
        "SHA-256, a call a block",
    )


def _each_alone(tokens: bytes) -> None:
    """What hashing needs at least: a call for each block, of as many bytes as a parent's key and its tokens have."""
    size = 4 * BLOCK_TOKENS
    for at in range(0, len(tokens), size):
        hashlib.sha256(_PARENT + tokens[at : at + size]).digest()


def pages(size: int, seed: int | None = 1) -> NDArray[np.uint8]:
    """uint8 [size] that begins at a page, touched; of random content (a piece again and again) unless seed is None."""
    memory = np.frombuffer(mmap.mmap(-1, size), np.uint8)
    if seed is None:
        memory[:] = 0
    else:
        some = np.random.default_rng(seed).bytes(min(size, _PIECE_BYTES))
        memory[:] = np.resize(np.frombuffer(some, np.uint8), size)
    return memory
