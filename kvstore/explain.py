"""Explainer: what a prompt would hit now, and where and why it breaks. Leases, touches and counts nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .depot import Depot
from .residents import Residents
from .types import Miss


@dataclass(frozen=True, slots=True)
class Explanation:
    """tokens: that would be hit, by the nearest tier. miss: None = every full block is here. compute_s, load_s: what
    computing the hit tokens, and what bringing them to DRAM would take; 0 = not known."""

    fingerprint: bytes
    label: str
    tokens: Mapping[str, int]
    miss: Miss | None
    compute_s: float = 0.0
    load_s: float = 0.0


class Explainer:
    """spaces: the store's live table of namespaces."""

    def __init__(self, spaces: Mapping[bytes, Residents], depot: Depot, clock: Callable[[], float]) -> None:
        self._spaces = spaces
        self._depot = depot
        self._clock = clock

    def explain(self, fingerprint: bytes, tokens: bytes) -> Explanation | None:
        """None: no such namespace here."""
        return None
