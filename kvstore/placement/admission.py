"""Admission: which blocks are worth writing to a tier whose writes are not free (an SSD wears, a link is shared)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from ...proto import DEFAULT_RETENTION, Retention


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """One block in front of a tier.

    hits:      requests that have read it since it was computed.
    depth:     its ordinal in the prompt.
    tier_fill: live share of what the tier may hold, 0 to 1.
    compute_s, load_s: what computing it, and getting it from the tier, would take; 0 = not known.
    """

    hits: int
    depth: int
    block_bytes: int
    tier_fill: float
    compute_s: float = 0.0
    load_s: float = 0.0
    retention: Retention = DEFAULT_RETENTION


class Admission(Protocol):
    """Says no to save writes, never because it must: a pinned block is always admitted."""

    def admit(self, facts: BlockFacts) -> bool: ...


class AdmitAll:
    """Every block. The default: whatever fits is found again."""

    def admit(self, facts: BlockFacts) -> bool:
        return True


class SecondHit:
    """Blocks that were asked for again after they were computed: one-off prompts are never written."""

    def admit(self, facts: BlockFacts) -> bool:
        return facts.hits > 0 or facts.retention.pinned


class CostBased:
    """Fills an empty tier with everything; once it is half full, takes only what was read again, is marked as worth
    more than others, or is `factor` times faster to get than to compute (and what is not known yet)."""

    def __init__(self, *, fill: float = 0.5, factor: float = 2.0) -> None:
        """fill: share of the tier below which nothing is refused."""
        if not 0 <= fill <= 1 or not factor > 0:
            raise ValueError(f"fill must be within 0 and 1 and factor above 0, not {fill} and {factor}")
        self._fill = fill
        self._factor = factor

    def admit(self, facts: BlockFacts) -> bool:
        marked = facts.retention.pinned or facts.retention.priority > DEFAULT_RETENTION.priority
        if facts.tier_fill < self._fill or facts.hits > 0 or marked:
            return True
        return not facts.compute_s or not facts.load_s or facts.load_s * self._factor <= facts.compute_s


ADMISSIONS: Mapping[str, Callable[[], Admission]] = {
    "all": AdmitAll,
    "second_hit": SecondHit,
    "cost": CostBased,
}
