"""Receipts: the last of them, in a ring."""

from collections import deque
from collections.abc import Iterator

from ..types import Receipt


class Receipts:
    """most: kept. `total` counts all."""

    def __init__(self, most: int) -> None:
        self._ring: deque[Receipt] = deque(maxlen=most)
        self.total = 0

    def add(self, receipt: Receipt) -> None:
        """The newest."""
        self._ring.append(receipt)
        self.total += 1

    def __iter__(self) -> Iterator[Receipt]:
        """Newest first."""
        return reversed(self._ring)
