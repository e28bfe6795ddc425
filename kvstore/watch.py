"""Watchers: who is told which blocks a tier of this store has now, and which no longer.

Told at once, on the store's loop, of what has become visible or has left; a watcher takes note and returns. Costs
nothing but a test while nobody watches.
"""

from collections.abc import Callable, Sequence
from typing import Protocol


class Watcher(Protocol):
    """fingerprint: of the namespace. Keys are chained block keys."""

    def stored(
        self, tier: str, fingerprint: bytes, first: int, keys: Sequence[bytes], parent: bytes, tokens: bytes
    ) -> None:
        """Blocks `first`.. of a path are in that tier. parent: key of the block above them, the fingerprint above a
        first one; tokens: packed, of these blocks alone. May be said again of blocks it was said of before."""
        ...

    def removed(self, tier: str, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        """These blocks have left that tier."""
        ...

    def cleared(self, tier: str, fingerprint: bytes) -> None:
        """All of a namespace's blocks have left that tier."""
        ...


class Watchers:
    """Passes on to all of them."""

    def __init__(self) -> None:
        self._all: list[Watcher] = []

    @property
    def present(self) -> bool:
        """Whether anybody watches."""
        return bool(self._all)

    def add(self, watcher: Watcher) -> Callable[[], None]:
        """What this returns ends it."""
        self._all.append(watcher)
        return lambda: self._all.remove(watcher)

    def stored(
        self, tier: str, fingerprint: bytes, first: int, keys: Sequence[bytes], parent: bytes, tokens: bytes
    ) -> None:
        for each in self._all:
            each.stored(tier, fingerprint, first, keys, parent, tokens)

    def removed(self, tier: str, fingerprint: bytes, keys: Sequence[bytes]) -> None:
        for each in self._all:
            each.removed(tier, fingerprint, keys)

    def cleared(self, tier: str, fingerprint: bytes) -> None:
        for each in self._all:
            each.cleared(tier, fingerprint)
