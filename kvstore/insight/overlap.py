"""Tail: what follows in a prompt where it breaks off what is cached, so that two of them can be compared in fixed
memory: do they run on the same, somewhere behind the break?

Of all runs of GRAM tokens the KEPT with the smallest hashes are kept (bottom-k, Broder 1997): of two tails, those below
the smaller of their bounds are the same random sample of both, so their common part is the tails' common part.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

GRAM = 8
KEPT = 512
HEAD_TOKENS = 1024  # kept as they are, to find the break and where they run on
MAX_TOKENS = 1 << 14  # of a tail; what is behind is not looked at

_WHOLE = (1 << 64) - 1
_POWERS = np.array([pow(0x9E3779B97F4A7C15, power, 1 << 64) for power in range(1, GRAM + 1)], dtype=np.uint64)
_MIX = np.uint64(0xD6E8FEB86659FD93)


@dataclass(frozen=True, slots=True)
class Overlap:
    """differs: the first token of ours that is another than theirs. same_tokens: of ours behind it, those that are
    theirs, too, wherever there; estimated. ours_until, theirs_until: where they run on the same again; 0 = not within
    the head. reordered: what each has at the break, the other has farther behind."""

    differs: int
    same_tokens: int
    ours_until: int
    theirs_until: int
    reordered: bool


class Tail:
    """tokens: packed, from the break's block on. About 8 KiB."""

    def __init__(self, tokens: bytes) -> None:
        whole = np.frombuffer(tokens, dtype="<i4", count=min(len(tokens) // 4, MAX_TOKENS))
        self.head: NDArray[np.int32] = whole[:HEAD_TOKENS].copy()
        self.count = len(whole)
        hashes = np.sort(_grams(whole))
        hashes = np.concatenate([hashes[:1], hashes[1:][hashes[1:] != hashes[:-1]]])  # np.unique takes four times this
        self._bound = int(hashes[KEPT]) if len(hashes) > KEPT else _WHOLE
        self._kept = hashes[:KEPT].copy()  # a slice would keep all of it

    def compare(self, theirs: "Tail", within: int) -> Overlap | None:
        """None: the same as far as the shorter one goes, or other only behind the first `within` tokens."""
        length = min(len(self.head), len(theirs.head))
        other = self.head[:length] != theirs.head[:length]
        differs = int(other.argmax()) if length else 0
        if not length or not other[differs] or differs >= within:
            return None
        bound = np.uint64(min(self._bound, theirs._bound))
        ours, cached = self._kept[self._kept <= bound], theirs._kept[theirs._kept <= bound]
        share = len(np.intersect1d(ours, cached, assume_unique=True)) / len(ours) if len(ours) else 0.0
        if not share:
            return Overlap(differs, 0, 0, 0, reordered=False)
        # Runs that reach over the break, or over an end, are not the same although their tokens may be.
        same = min(round(share * (self.count - GRAM + 1)) + GRAM - 1, self.count - differs)
        return Overlap(differs, same, *_again(_grams(self.head), _grams(theirs.head), differs))


def _again(ours: NDArray[np.uint64], theirs: NDArray[np.uint64], differs: int) -> tuple[int, int, bool]:
    """Where both run on, and whether they only changed places."""
    ours, theirs = ours[differs:], theirs[differs:]
    found = np.flatnonzero(np.isin(ours, theirs))
    if not len(found):
        return 0, 0, False
    first = int(found[0])
    there = int(np.flatnonzero(theirs == ours[first])[0])
    swapped = first == 0 and there > 0 and bool(np.isin(theirs[:1], ours[1:]).all())
    return differs + first, differs + there, swapped


def _grams(tokens: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Hashes of all runs of GRAM tokens, by where they begin."""
    count = len(tokens) - GRAM + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    wide = tokens.astype(np.uint64) + np.uint64(1)
    hashes = wide[:count] * _POWERS[0]
    for offset in range(1, GRAM):
        hashes += wide[offset : offset + count] * _POWERS[offset]
    hashes ^= hashes >> np.uint64(32)
    hashes *= _MIX
    hashes ^= hashes >> np.uint64(29)
    return hashes
