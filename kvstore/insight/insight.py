"""Insight: one object a store, fed by what is asked of it and by the receipts of its engines. Used on its loop."""

from collections.abc import Sequence

from ..types import Receipt
from .receipts import Receipts
from .types import Finding, Sample, SpaceInsight

DEFAULT_RECEIPTS = 4096


class Insight:
    """receipts: the last of them."""

    def __init__(self, *, receipts: int = DEFAULT_RECEIPTS) -> None:
        self.receipts = Receipts(receipts)

    def served(self, receipt: Receipt) -> None:
        """One request got this."""
        self.receipts.add(receipt)

    def spaces(self, fingerprint: bytes = b"") -> list[SpaceInsight]:
        """All of the store's first, then each namespace's, or only that one's."""
        return []

    def findings(self) -> list[Finding]:
        """Those that cost most first."""
        return []

    def history(self, since_s: float = 0.0) -> Sequence[Sample]:
        """Intervals that ended after that Unix time, oldest first."""
        return []
