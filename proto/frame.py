"""Frame: how a page of ours begins, whatever is in it: a magic, and the checksum of all that follows."""

import struct

import xxhash

from .layout import PAGE_BYTES

_FRAME = struct.Struct("<8sQ")
FRAME_BYTES = _FRAME.size


def frame(magic: bytes, fields: bytes) -> bytes:
    """One page."""
    rest = fields + bytes(PAGE_BYTES - FRAME_BYTES - len(fields))
    return _FRAME.pack(magic, xxhash.xxh3_64_intdigest(rest)) + rest


def frame_into(out: memoryview, magic: bytes) -> None:
    """Whole pages that hold all but their frame."""
    _FRAME.pack_into(out, 0, magic, xxhash.xxh3_64_intdigest(out[FRAME_BYTES:]))


def magic_of(page: memoryview) -> bytes:
    """b"" of what is too short to have one."""
    return bytes(page[:8]) if len(page) >= FRAME_BYTES else b""


def framed(head: memoryview, magic: bytes, count: int = 1) -> bool:
    """Whether it begins with the magic and the checksum of the rest of `count` pages, whatever lies behind them."""
    if len(head) < count * PAGE_BYTES:
        return False
    found, checksum = _FRAME.unpack_from(head)
    return found == magic and checksum == xxhash.xxh3_64_intdigest(head[FRAME_BYTES : count * PAGE_BYTES])
