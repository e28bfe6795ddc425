"""Codec: what may make a block's bytes fewer on their way to a device. Lossless, one block at a time.

Codecs hold no state that belongs to a block and may be called from several threads at once: the tier calls them in its
I/O threads, and the work is done in numpy and lz4, which let go of the GIL. `ident` goes into the record; `codec_of`
finds the codec of a record that was written under another configuration.

PlanesLz4's bytes, little-endian:

    u8 version (1), u8 itemsize, u16 zero, u32 raw bytes
    u32 per plane: bytes of the plane as stored; the top bit says that they are the plane itself, not lz4
    the planes one after another, plane k being byte k of every element, each an lz4 block of its own

The high byte of a float (sign and exponent) takes few values and compresses, the low ones are noise: apart, the noise
costs nothing but its copy.
"""

import logging
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import lz4.block
import numpy as np
from numpy.typing import NDArray

from ...proto import PAGE_BYTES

log = logging.getLogger(__name__)

Bytes = NDArray[np.uint8]


class Codec(Protocol):
    """name: for humans; ident: in the record's header, for ever."""

    name: str
    ident: int

    def encode(self, payload: Bytes, itemsize: int) -> bytes | None:
        """The payload in fewer pages; None = store it as it is. itemsize: bytes of the elements that it is made of."""
        ...

    def decode(self, stored: Bytes, into: Bytes) -> None:
        """Fill `into` (uint8, contiguous, as long as the payload was) and nothing behind it.

        ValueError: `stored` is damaged, or not of a payload of that length; then the content of `into` is undefined.
        """
        ...


class RawCodec:
    """The bytes as they are: every record that a codec did not make smaller is one of these."""

    name = "raw"
    ident = 0

    def encode(self, payload: Bytes, itemsize: int) -> bytes | None:
        return None

    def decode(self, stored: Bytes, into: Bytes) -> None:
        if len(stored) != len(into):
            raise ValueError(f"{len(stored)} bytes stored for a block of {len(into)}")
        into[:] = stored


class PlanesLz4:
    """The bytes of equal significance together, each plane through lz4. What that yields, and how fast, depends on the
    data and the machine: `Measured` finds out."""

    name = "planes-lz4"
    ident = 1
    _HEAD = struct.Struct("<BBHI")
    _VERSION = 1
    _AS_IS = 1 << 31

    def encode(self, payload: Bytes, itemsize: int) -> bytes | None:
        assert 0 < itemsize < 256, itemsize
        if len(payload) % itemsize:
            itemsize = 1
        elements = payload.reshape(-1, itemsize)
        lengths: list[int] = []
        parts: list[bytes] = []
        for k in range(itemsize):
            plane = elements[:, k].tobytes()
            packed = lz4.block.compress(plane, store_size=False)
            lengths.append(len(packed) if len(packed) < len(plane) else len(plane) | self._AS_IS)
            parts.append(packed if len(packed) < len(plane) else plane)
        head = self._HEAD.pack(self._VERSION, itemsize, 0, len(payload)) + struct.pack(f"<{itemsize}I", *lengths)
        stored = b"".join((head, *parts))
        return stored if _pages(len(stored)) < _pages(len(payload)) else None

    def decode(self, stored: Bytes, into: Bytes) -> None:
        if len(stored) < self._HEAD.size:
            raise ValueError(f"{len(stored)} bytes are no block of byte planes")
        version, itemsize, zero, raw_bytes = self._HEAD.unpack_from(stored.data)
        if (version, zero) != (self._VERSION, 0) or not itemsize or raw_bytes != len(into) or len(into) % itemsize:
            raise ValueError(f"not byte planes of a block of {len(into)} bytes")
        at = self._HEAD.size + 4 * itemsize
        if len(stored) < at:
            raise ValueError("byte planes end before they begin")
        lengths = struct.unpack_from(f"<{itemsize}I", stored.data, self._HEAD.size)
        if at + sum(length & ~self._AS_IS for length in lengths) != len(stored):
            raise ValueError("byte planes of another length than their header says")
        elements = into.reshape(-1, itemsize)
        for k, length in enumerate(lengths):
            end = at + (length & ~self._AS_IS)
            elements[:, k] = self._plane(stored[at:end], bool(length & self._AS_IS), len(elements))
            at = end

    @staticmethod
    def _plane(part: Bytes, as_is: bool, size: int) -> Bytes:
        if not as_is:
            try:
                part = np.frombuffer(lz4.block.decompress(part.data, uncompressed_size=size), np.uint8)
            except lz4.block.LZ4BlockError as error:
                raise ValueError(f"a damaged byte plane: {error}") from error
        if len(part) != size:
            raise ValueError(f"a byte plane of {len(part)} bytes instead of {size}")
        return part


RAW = RawCodec()
_KNOWN: dict[int, Codec] = {RawCodec.ident: RAW, PlanesLz4.ident: PlanesLz4()}


def codec_of(ident: int) -> Codec | None:
    """The codec that decodes records with this ident; None = written by a newer program."""
    return _KNOWN.get(ident)


@dataclass(frozen=True, slots=True)
class CodecStats:
    """enabled: whether new blocks are encoded. Speeds: raw bytes per second in one thread, 0.0 = not measured yet.
    stored_share: pages that encoded blocks take, of those they would take raw. raw_bytes, stored_bytes: of the blocks
    that were given out encoded. switches: how often it turned itself off or on."""

    name: str
    enabled: bool
    encode_bytes_s: float
    decode_bytes_s: float
    stored_share: float
    raw_bytes: int
    stored_bytes: int
    switches: int


class Measured:
    """A codec that steps aside where it costs more time than it saves.

    It is worth its work while, in both directions, one thread's coding and moving the rest takes no longer than moving
    the whole: 1/codec + share/device <= 1/device, all in bytes per second. The first blocks, and from then on one in
    PROBE, are encoded, decoded again, timed and compared with what went in; the averages of the last blocks decide. It
    turns itself off when coding is MARGIN slower, and on again when it is MARGIN faster. Blocks stored before keep
    their ident and are read as before.

    device: the device's measured (read, write) bandwidth in bytes per second, 0.0 = not known yet; until it is, blocks
    are encoded. clock: seconds, of a kind that sees the work of one call.
    """

    FIRST = 4
    PROBE = 64
    MARGIN = 1.1
    _DECAY = 0.9

    def __init__(
        self, codec: Codec, device: Callable[[], tuple[float, float]], *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.name = codec.name
        self.ident = codec.ident
        self._codec = codec
        self._device = device
        self._clock = clock
        self._lock = threading.Lock()  # blocks are encoded in several threads
        self._asked = 0
        self._enabled = True
        self._switches = 0
        self._weight = self._raw = self._encode_s = self._decode_s = self._pages = 0.0  # decayed sums over probes
        self._raw_bytes = self._stored_bytes = 0

    def encode(self, payload: Bytes, itemsize: int) -> bytes | None:
        with self._lock:
            probe = self._asked < self.FIRST or self._asked % self.PROBE == 0
            self._asked += 1
            enabled = self._enabled
        if probe:
            stored, enabled = self._probe(payload, itemsize)
        elif enabled:
            stored = self._codec.encode(payload, itemsize)
        else:
            return None
        if stored is None or not enabled:
            return None
        with self._lock:
            self._raw_bytes += len(payload)
            self._stored_bytes += len(stored)
        return stored

    def decode(self, stored: Bytes, into: Bytes) -> None:
        self._codec.decode(stored, into)

    def stats(self) -> CodecStats:
        with self._lock:
            return CodecStats(
                self.name,
                self._enabled,
                self._raw / self._encode_s if self._encode_s else 0.0,
                self._raw / self._decode_s if self._decode_s else 0.0,
                self._pages / self._weight if self._weight else 1.0,
                self._raw_bytes,
                self._stored_bytes,
                self._switches,
            )

    def _probe(self, payload: Bytes, itemsize: int) -> tuple[bytes | None, bool]:
        """Encode and decode with a watch; the bytes, and whether coding is on now."""
        began = self._clock()
        stored = self._codec.encode(payload, itemsize)
        encoded = self._clock()
        if stored is not None:
            again = np.empty_like(payload)
            encoded_at = self._clock()
            self._codec.decode(np.frombuffer(stored, np.uint8), again)
            decode_s = self._clock() - encoded_at
            if not np.array_equal(again, payload):
                log.error("%s did not give back what it was given; the block is stored as it is", self.name)
                return None, False
        else:
            decode_s = 0.0
        pages = _pages(len(payload)) if stored is None else _pages(len(stored))
        return stored, self._learn(len(payload), pages, encoded - began, decode_s)

    def _learn(self, size: int, pages: int, encode_s: float, decode_s: float) -> bool:
        read, write = self._device()
        with self._lock:
            self._raw = self._raw * self._DECAY + size
            self._encode_s = self._encode_s * self._DECAY + encode_s
            self._decode_s = self._decode_s * self._DECAY + decode_s
            self._pages = self._pages * self._DECAY + pages
            self._weight = self._weight * self._DECAY + _pages(size)
            if read <= 0.0 or write <= 0.0:
                return self._enabled
            share = self._pages / self._weight
            slower = max(
                self._decode_s / self._raw * read + share,  # of the time that moving the whole block takes
                self._encode_s / self._raw * write + share,
            )
            turn = slower > self.MARGIN if self._enabled else slower < 1 / self.MARGIN
            if turn:
                self._enabled = not self._enabled
                self._switches += 1
            enabled = self._enabled
        if turn:
            log.info(
                "%s is %s: coding and moving a block takes %.2f of the time that moving it raw does",
                self.name,
                "on again" if enabled else "off",
                slower,
            )
        return enabled


def _pages(size: int) -> int:
    return -(-size // PAGE_BYTES)
