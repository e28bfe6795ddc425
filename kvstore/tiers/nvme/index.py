"""RecordIndex: where each key's record is, over all devices. Owned by the event loop.

A locator is one number, a segment's slot and an ordinal in it: with its key about 180 bytes a block, segment columns
included. Invariant: a locator's record is live, and every live record (of segments that count) has its locator.
"""

import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

from .segment import Segment

HomeT = TypeVar("HomeT")

_ORDINAL_BITS = 32
_ORDINAL = (1 << _ORDINAL_BITS) - 1


class RecordIndex(Generic[HomeT]):
    """HomeT: what a segment belongs to."""

    def __init__(self) -> None:
        self._locators: dict[bytes, int] = {}
        self._segments: dict[int, tuple[HomeT, Segment]] = {}
        self._slots = itertools.count()
        self.sequences = itertools.count(1)

    def __len__(self) -> int:
        return len(self._locators)

    def __contains__(self, key: bytes) -> bool:
        return key in self._locators

    def new_slot(self) -> int:
        return next(self._slots)

    def enrol(self, home: HomeT, segment: Segment) -> None:
        """The segment's records may get locators."""
        self._segments[segment.slot] = (home, segment)

    def forget(self, segment: Segment) -> None:
        """It has no live record."""
        assert not segment.live
        self._segments.pop(segment.slot, None)

    def find(self, key: bytes) -> tuple[HomeT, Segment, int] | None:
        locator = self._locators.get(key)
        if locator is None:
            return None
        home, segment = self._segments[locator >> _ORDINAL_BITS]
        return home, segment, locator & _ORDINAL

    def put(self, segment: Segment, ordinal: int) -> None:
        """The live record is its key's from now on. The key has none, or one that the caller has killed."""
        self._locators[segment.keys[ordinal]] = segment.slot << _ORDINAL_BITS | ordinal

    def owns(self, segment: Segment, ordinal: int) -> bool:
        """Whether the record is its key's."""
        return self._locators.get(segment.keys[ordinal]) == segment.slot << _ORDINAL_BITS | ordinal

    def drop(self, segment: Segment, ordinal: int) -> None:
        """The record, which is its key's, is dead."""
        del self._locators[segment.keys[ordinal]]
        segment.kill(ordinal)

    def move(self, segment: Segment, ordinal: int, copy: Segment, at: int) -> None:
        """The record, which is its key's, lives in a copy from now on."""
        segment.kill(ordinal, moved=True)
        self.put(copy, at)

    def fill(self, locators: dict[bytes, int], next_sequence: int) -> None:
        """At start."""
        self._locators = locators
        self.sequences = itertools.count(next_sequence)

    def segments(self) -> Iterator[tuple[HomeT, Segment]]:
        return iter(list(self._segments.values()))

    @staticmethod
    def locator(segment: Segment, ordinal: int) -> int:
        return segment.slot << _ORDINAL_BITS | ordinal

    @staticmethod
    def split(locator: int) -> tuple[int, int]:
        """(slot, ordinal)."""
        return locator >> _ORDINAL_BITS, locator & _ORDINAL

    def clear(self) -> None:
        """Forget everything; the files stay as they are."""
        self._locators.clear()
        self._segments.clear()

    def check(self) -> None:
        """AssertionError unless locators and live records agree. O(records)."""
        live = 0
        for _, segment in self.segments():
            segment.check()
            for ordinal in segment.live_ordinals() if segment.tally is not None else ():
                assert self.owns(segment, ordinal), "a live record without its locator"
                live += 1
        assert live == len(self._locators), "a locator without its live record"
