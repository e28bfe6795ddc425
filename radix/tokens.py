"""Packed tokens: token ids as little-endian int32 bytes, four bytes a token, the form every folder passes around."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

TOKEN_BYTES = 4


def pack_tokens(ids: Sequence[int] | NDArray[np.integer]) -> bytes:
    """The ids as little-endian int32 bytes; OverflowError or ValueError for an id outside int32."""
    array = np.asarray(ids)
    if array.size == 0:
        return b""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"token ids are a flat sequence of integers, not {array.dtype}{list(array.shape)}")
    if array.dtype.itemsize >= TOKEN_BYTES and (int(array.max()) >= 2**31 or int(array.min()) < -(2**31)):
        raise ValueError("a token id does not fit int32")
    return array.astype("<i4").tobytes()


def unpack_tokens(tokens: bytes) -> NDArray[np.int32]:
    """Read-only int32 view of packed tokens; ValueError when the length is no multiple of four."""
    return np.frombuffer(tokens, dtype="<i4") if tokens else np.empty(0, dtype=np.int32)
