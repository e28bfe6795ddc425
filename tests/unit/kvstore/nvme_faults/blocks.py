"""Blocks by number: the same number is always the same block, and no two have a byte pattern in common."""

import mmap

import numpy as np
import xxhash
from kvterrace.kvstore.tiers import Record, Wanted
from kvterrace.proto import Retention

PAGE = 4096
NAMESPACES = 2


def fingerprint(number: int) -> bytes:
    return bytes([number % NAMESPACES + 1]) * 32


def block_bytes(number: int) -> int:
    """Namespaces have blocks of other lengths; one fills its pages, one does not."""
    return 2 * PAGE if number % NAMESPACES else 3 * PAGE - 96


def payload(number: int) -> np.ndarray:
    """Half noise, half of it compressible: a codec for two-byte elements saves a page of three."""
    made = np.random.default_rng(number).integers(0, 256, block_bytes(number), dtype=np.uint8)
    made[1::2] &= 1
    return made


def key(number: int) -> bytes:
    return xxhash.xxh3_128_digest(f"key {number}".encode()) * 2


def tokens(number: int) -> bytes:
    return np.full(16, number, np.int32).tobytes()


def retention(number: int) -> Retention:
    return Retention(priority=number % 101, ttl_s=float(number % 3 * 60), pinned=number % 5 == 0)


def aligned(size: int) -> np.ndarray:
    """uint8 [whole pages]: a slot of the arena."""
    return np.frombuffer(mmap.mmap(-1, -(-size // PAGE) * PAGE), np.uint8)


def record(number: int) -> Record:
    """In a slot of its own for even numbers, in memory that begins anywhere for odd ones."""
    content = payload(number)
    memory = aligned(len(content)) if number // NAMESPACES % 2 else np.empty(len(content) + 7, np.uint8)[7:]
    memory[: len(content)] = content
    return Record(
        fingerprint(number),
        key(number),
        key(number - 1),
        tokens(number),
        len(content),
        memory,
        xxhash.xxh3_64_intdigest(content),
        retention=retention(number),
        itemsize=2,
    )


def wanted(number: int) -> Wanted:
    size = block_bytes(number)
    into = aligned(size) if number // NAMESPACES % 2 else np.zeros(size + 7, np.uint8)[7:]
    return Wanted(fingerprint(number), key(number), key(number - 1), tokens(number), size, into)


def is_right(want: Wanted, number: int) -> bool:
    return bool(np.array_equal(want.into[: want.block_bytes], payload(number)))
