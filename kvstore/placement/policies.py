"""Eviction policies by name, as configuration and simulator choose them: every one honours retention and spares last
copies."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from ...radix import Adaptive, EvictionPolicy, Gdsf, Lru, Replicated, Retained, S3Fifo

BlockCost: TypeAlias = Callable[[int], float]
"""Seconds that computing the block of this ordinal takes; 0.0 = not known."""
MakePolicy: TypeAlias = Callable[[BlockCost], EvictionPolicy]

_BASES: Mapping[str, MakePolicy] = {
    "adaptive": lambda _: Adaptive(),
    "lru": lambda _: Lru(),
    "s3fifo": lambda _: S3Fifo(),
    "gdsf": Gdsf,
}
POLICY_NAMES = tuple(_BASES)
DEFAULT_POLICY = "adaptive"
DEFAULT_PIN_SHARE = 0.25


def make_policy(name: str = DEFAULT_POLICY, pin_share: float = DEFAULT_PIN_SHARE) -> MakePolicy:
    """What makes the policy of that name for an index, once for each. pin_share: of the blocks, what pins may keep.
    KeyError for a name that is none."""
    base = _BASES[name]
    return lambda cost: Replicated(Retained(base(cost), pin_share))
