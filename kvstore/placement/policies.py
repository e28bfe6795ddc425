"""Eviction policies by name, as configuration and simulator choose them: every one honours retention."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ...radix import EvictionPolicy, Lru, Retained, S3Fifo

BlockCost: TypeAlias = Callable[[int], float]
"""Seconds that computing the block of this ordinal takes; 0.0 = not known."""
MakePolicy: TypeAlias = Callable[[BlockCost], EvictionPolicy]
