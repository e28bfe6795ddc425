"""Block keys: the chained hash that names a block and the whole prefix ending in it.

key = H(parent key ‖ token ids as little-endian int32 ‖ length of extras as little-endian uint32 ‖ extras), where the
parent of a first block is the namespace fingerprint. Every field but the last has a fixed length within a namespace
and the last one is preceded by its length, so that no two different blocks are hashed from the same bytes.
H is SHA-256, or xxh3-128 (big-endian digest) for single-tenant installs, which resists accidents, not attackers.
"""

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

import xxhash

Extras = Mapping[int, bytes]
"""What else identifies a block (image content hash and offset, ...), by block ordinal; empty bytes count as none."""

SEED_BYTES = 32
_NO_EXTRAS = bytes(4)


class _Digest(Protocol):
    def digest(self) -> bytes: ...


_CONSTRUCTORS: dict[str, Callable[[bytes], _Digest]] = {"sha256": hashlib.sha256, "xxh3-128": xxhash.xxh3_128}
HASH_BYTES = {"sha256": 32, "xxh3-128": 16}
"""Key length by hash name; its names are all that `hash_name` may be."""


def hasher(hash_name: str) -> Callable[[bytes], _Digest]:
    """The hash constructor of that name; ValueError names the known ones."""
    if hash_name not in _CONSTRUCTORS:
        raise ValueError(f"no block hash named {hash_name!r}; there are {', '.join(sorted(_CONSTRUCTORS))}")
    return _CONSTRUCTORS[hash_name]


def framed(extras: bytes) -> bytes:
    """Extras as they enter the hash."""
    return len(extras).to_bytes(4, "little") + extras if extras else _NO_EXTRAS


def block_keys(
    seed: bytes, tokens: bytes, block_tokens: int, *, hash_name: str = "sha256", extras: Extras | None = None
) -> list[bytes]:
    """Keys of all full blocks of `tokens`, from the first, without an index; about 1.4 us a block with SHA-256."""
    new, size, more = hasher(hash_name), 4 * block_tokens, extras or {}
    parent, keys = seed, list[bytes]()
    for ordinal in range(len(tokens) // size):
        block = tokens[ordinal * size : (ordinal + 1) * size]
        parent = new(parent + block + framed(more.get(ordinal, b""))).digest()
        keys.append(parent)
    return keys
