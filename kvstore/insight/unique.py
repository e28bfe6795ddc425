"""How many different blocks were asked for lately, in fixed memory: HyperLogLog over sliding windows.

Registers as in Flajolet, Fusy, Gandouet, Meunier (AofA 2007), of 64-bit hashes; the estimate is Ertl's (arXiv
1702.01284), which needs no correction for small or large numbers. Relative standard error 1.04 / sqrt(2^PRECISION):
1.15 %, and less for a few thousand. A block that is not the first of its kind in the window is a repeated one, so
tokens less those of different blocks are what a cache without limit would have hit.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .types import Window

PRECISION = 13  # 8 KiB a sketch
_SIZE = 1 << PRECISION
_RANKS = 64 - PRECISION
_MINUTE_S = 60.0
# (length of a window, of the pieces that it moves on by). A window reaches back by its length, less a piece at most.
_LEVELS = ((900.0, _MINUTE_S), (3600.0, 300.0), (86_400.0, 3600.0))
WINDOWS_S = tuple(length for length, _ in _LEVELS)
SPACE_BYTES = _SIZE * (1 + sum(int(length / piece) for length, piece in _LEVELS))
"""What Windows takes at most: 416 KiB."""


class Sketch:
    """A set of 64-bit hashes that only knows about how many there are. Adding the same again changes nothing."""

    def __init__(self) -> None:
        self._registers: NDArray[np.uint8] = np.zeros(_SIZE, dtype=np.uint8)

    def add(self, hashes: NDArray[np.uint64]) -> None:
        places = (hashes >> np.uint64(_RANKS)).astype(np.intp)
        rest = hashes & np.uint64((1 << _RANKS) - 1)
        _, bits = np.frexp(rest.astype(np.float64))  # bit length; 0 for 0
        np.maximum.at(self._registers, places, (_RANKS + 1 - bits).astype(np.uint8))

    def merge(self, other: "Sketch") -> None:
        """What either had."""
        np.maximum(self._registers, other._registers, out=self._registers)

    def estimate(self) -> float:
        """About how many different ones were added."""
        counts = np.bincount(self._registers, minlength=_RANKS + 2).tolist()
        z = _SIZE * _tau(1.0 - counts[_RANKS + 1] / _SIZE)
        for count in reversed(counts[1 : _RANKS + 1]):
            z = 0.5 * (z + count)
        z += _SIZE * _sigma(counts[0] / _SIZE)
        return _SIZE * _SIZE / (2.0 * math.log(2.0) * z)


def _sigma(x: float) -> float:
    """x + sum of x^(2^k) 2^(k-1): of the registers that are still zero."""
    if x == 1.0:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x, before = x * x, z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    """Of the registers that can rise no further."""
    if x in (0.0, 1.0):
        return 0.0
    y, z, before = 1.0, 1.0 - x, -1.0
    while z != before:
        x, before, y = math.sqrt(x), z, y * 0.5
        z -= (1.0 - x) ** 2 * y
    return z / 3.0


@dataclass(slots=True)
class _Bin:
    """A piece of time: number * its length is when it began."""

    number: int
    sketch: Sketch
    tokens: int = 0
    hit_tokens: int = 0

    def merge(self, other: "_Bin") -> None:
        self.sketch.merge(other.sketch)
        self.tokens += other.tokens
        self.hit_tokens += other.hit_tokens


class Windows:
    """The blocks of one namespace. Only the running minute is counted into; it joins the longer pieces once it is over,
    so that a prompt costs one sketch, whatever the windows."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._minute: _Bin | None = None
        self._levels = [deque[_Bin](maxlen=int(length / piece)) for length, piece in _LEVELS]

    def add(self, now: float, hashes: NDArray[np.uint64], hit_tokens: int) -> None:
        """Blocks of one prompt; hit_tokens of theirs were found."""
        minute = self._at(now)
        minute.sketch.add(hashes)
        minute.tokens += len(hashes) * self._block_tokens
        minute.hit_tokens += hit_tokens

    def read(self, now: float) -> tuple[Window, ...]:
        """One for each length."""
        self._at(now)
        return tuple(self._window(now, level) for level in range(len(_LEVELS)))

    def _at(self, now: float) -> _Bin:
        """The running minute; the one before is put away."""
        number, minute = int(now // _MINUTE_S), self._minute
        if minute is not None and minute.number != number:
            for (_, piece), bins in zip(_LEVELS, self._levels, strict=True):
                _put(bins, int(minute.number * _MINUTE_S // piece), minute)
            minute = None
        if minute is None:
            minute = self._minute = _Bin(number, Sketch())
        return minute

    def _window(self, now: float, level: int) -> Window:
        length, piece = _LEVELS[level]
        whole = _Bin(0, Sketch())
        for each in self._levels[level]:
            if each.number * piece > now - length:
                whole.merge(each)
        if self._minute is not None:
            whole.merge(self._minute)
        different = round(whole.sketch.estimate()) * self._block_tokens
        return Window(length, whole.tokens, max(whole.tokens - different, 0), whole.hit_tokens)


def _put(bins: deque[_Bin], number: int, minute: _Bin) -> None:
    if not bins or bins[-1].number != number:
        bins.append(_Bin(number, Sketch()))
    bins[-1].merge(minute)
