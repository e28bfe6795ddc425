"""Below: the tier below DRAM, and how it is used."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from .depot import LowerTier
from .placement.admission import Admission, AdmitAll
from .tiers import NullTier
from .tiers.nvme.types import Inventory


@dataclass(frozen=True, slots=True)
class Below:
    """See the module.

    inventory: what the tier had when it was opened. admission: what is worth writing. exclusive: blocks go down only
    when they are about to leave DRAM, and leave the tier when they come up. in_flight_share, backlog_share: of the
    arena, what may be on its way up, and what may wait, pinned, for its way down.
    """

    tier: LowerTier = field(default_factory=NullTier)
    inventory: Sequence[Inventory] = ()
    admission: Admission = field(default_factory=AdmitAll)
    exclusive: bool = False
    in_flight_share: float = 0.5
    backlog_share: float = 0.5
