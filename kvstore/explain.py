"""Explainer: what a prompt would hit now, and where and why it breaks. Leases, touches and counts nothing.

All tiers of this node are looked at. The directory, other nodes and the remote store are not asked: a prompt may hit
there what is said to be missing here.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .catalog import NO_MATCH
from .depot import Depot
from .residents import Residents
from .types import Miss
from .why import Found, Why


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

    def __init__(self, spaces: Mapping[bytes, Residents], depot: Depot, why: Why) -> None:
        self._spaces = spaces
        self._depot = depot
        self._why = why

    def explain(self, fingerprint: bytes, tokens: bytes, *, operator: bool = True) -> Explanation | None:
        """None: no such namespace here. operator: whether the one who asks may learn that another tenant has it."""
        space, catalog = self._spaces.get(fingerprint), self._depot.of(fingerprint)
        known = space if space is not None else catalog
        if known is None:
            return None
        match = space.index.match(tokens) if space is not None else NO_MATCH
        below = catalog.index.match(tokens) if catalog is not None else NO_MATCH
        deeper = max(below.tokens - match.tokens, 0)
        first = max(len(match), len(below))
        miss = self._why.missing(Found(fingerprint, tokens, match, below), first, known.block_tokens)
        miss = self._why.truth(fingerprint, tokens, miss) if operator else miss
        tiers = {tier: count for tier, count in (("dram", match.tokens), (self._depot.name, deeper)) if count}
        if space is None:  # nobody has a session on it, so its label and its speed are not known
            return Explanation(fingerprint, "", tiers, miss)
        size = deeper // space.block_tokens * space.namespace.layout.block_bytes
        compute_s, load_s = space.cost.compute_s(0, match.tokens + deeper), space.cost.load_s(self._depot.name, size)
        return Explanation(fingerprint, space.namespace.label, tiers, miss, compute_s, load_s)
