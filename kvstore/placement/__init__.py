"""Placement: what is worth keeping, where. Pure: facts and measured costs in, decisions out. No clock, no I/O."""

from .admission import ADMISSIONS, Admission, AdmitAll, BlockFacts, CostBased, SecondHit
from .cost import CostModel, CostSnapshot, IoCost, TierCost

__all__ = [
    "ADMISSIONS",
    "Admission",
    "AdmitAll",
    "BlockFacts",
    "CostBased",
    "CostModel",
    "CostSnapshot",
    "IoCost",
    "SecondHit",
    "TierCost",
]
