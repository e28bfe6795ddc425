"""Remote: a store of last resort, as a store takes it."""

from dataclasses import dataclass, field

from ..placement.admission import Admission, AdmitAll
from ..tiers.remote import RemoteTier
from .finder import Finder


@dataclass(frozen=True, slots=True)
class Remote:
    """admission: what is worth writing. backlog_share: of the arena, what may wait, pinned, to be written."""

    tier: RemoteTier
    finder: Finder
    admission: Admission = field(default_factory=AdmitAll)
    backlog_share: float = 0.125

    @classmethod
    def of(cls, tier: RemoteTier, admission: Admission | None = None) -> "Remote":
        """With what belongs to the tier."""
        return cls(tier, Finder(tier), admission or AdmitAll())
