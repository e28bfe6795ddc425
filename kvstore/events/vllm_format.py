"""Batches as vLLM's event publisher writes them: msgpack, so that routers that know vLLM know this node.

The batch is an array [time, events, data parallel rank]. An event is a map with its kind under "type", as vLLM has it
since 0.24, or an array that begins with the kind, as before. Block hashes are the low 64 bits of a block's key, as
vLLM's are unless it is told otherwise, or the whole key as bytes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from ...radix import TOKEN_BYTES
from .types import Event, Kind

Encoding = Literal["map", "array"]
Hashes = Literal["int", "bytes"]
MEDIA = {"hbm": "GPU", "dram": "CPU", "nvme": "DISK", "remote": "EXTERNAL"}
_LOW_BYTES = 8
_RANK = 0
_FIELDS: dict[str, tuple[str, ...]] = {
    "BlockStored": (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
    ),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}


class VllmFormat:
    """media: what a tier is called. gone: which keys of a removal count, since a block may be in several engines."""

    def __init__(
        self, encoding: Encoding, hashes: Hashes, media: Mapping[str, str], gone: Callable[[Event], Sequence[bytes]]
    ) -> None:
        self._encoding = encoding
        self._hash: Callable[[bytes], int | bytes] = _low_bits if hashes == "int" else bytes
        self._media = {**MEDIA, **media}
        self._gone = gone
        self._encoder = msgspec.msgpack.Encoder()

    def payload(self, timestamp_s: float, events: Iterable[Event], *, cleared: bool = False) -> bytes | None:
        """One message; None: there is nothing to say. cleared: all that was said before is void."""
        rows = [self._row("AllBlocksCleared", ())] if cleared else []
        for event in events:
            row = self._stored(event) if event.kind is Kind.STORED else self._removed(event)
            if row is not None:
                rows.append(row)
        return self._encoder.encode([timestamp_s, rows, _RANK]) if rows else None

    def _stored(self, event: Event) -> object:
        keys = event.split()
        parent = None if event.first == 0 else self._hash(event.parent)
        tokens = np.frombuffer(event.tokens, dtype="<i4").tolist()
        size = len(event.tokens) // TOKEN_BYTES // event.count
        values = ([self._hash(key) for key in keys], parent, tokens, size, None, self._media.get(event.tier), None)
        return self._row("BlockStored", values)

    def _removed(self, event: Event) -> object | None:
        keys = self._gone(event)
        values = ([self._hash(key) for key in keys], self._media.get(event.tier))
        return self._row("BlockRemoved", values) if keys else None

    def _row(self, kind: str, values: Sequence[Any]) -> object:
        if self._encoding == "array":
            return [kind, *values]
        return {"type": kind, **dict(zip(_FIELDS[kind], values, strict=True))}


def _low_bits(key: bytes) -> int:
    return int.from_bytes(key[-_LOW_BYTES:], "big")
