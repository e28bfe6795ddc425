"""Tiers below the arena, behind one Protocol."""

from .base import Failed, Got, Hit, Miss, Put, Record, Rejected, Stored, Tier, Usage, Wanted, hit_bytes
from .dram import DramTier
from .null import NullTier

__all__ = [
    "DramTier",
    "Failed",
    "Got",
    "Hit",
    "Miss",
    "NullTier",
    "Put",
    "Record",
    "Rejected",
    "Stored",
    "Tier",
    "Usage",
    "Wanted",
    "hit_bytes",
]
