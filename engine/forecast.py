"""Forecast: what a prompt would find if it came now. Pure functions of what HBM and the store say they have."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..connector.base import Lookup, Miss
from .receipt import final_miss
from .request import TIERS

REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Forecast:
    """tokens: by tier, as in a Receipt. miss: why the first full block that would be computed is not found; None: all
    are. compute_s, load_s: of what the store has, as far as it knows. store: who was asked beside HBM ("none": nobody,
    "unavailable": it did not answer)."""

    tokens: dict[str, int]
    miss: Miss | None
    compute_s: float
    load_s: float
    store: str


def forecast(
    prompt_tokens: int, in_hbm: int, found: Lookup | None, *, block_tokens: int, store: str, unasked: Miss
) -> Forecast:
    """in_hbm: leading tokens that HBM has; found: what the store has of the same, None: it did not say, which is
    `unasked`. Peers and remote stores are not asked: what only they have counts as computed."""
    tokens: dict[str, int] = dict.fromkeys(TIERS, 0)
    tokens["hbm"] = in_hbm
    stored: Mapping[str, int] = found.tiers if found is not None else {}
    tokens |= _beyond(stored, in_hbm)
    reach = max(in_hbm, sum(stored.values()))
    tokens["computed"] = prompt_tokens - reach
    miss = None
    if reach < (prompt_tokens - 1) // block_tokens * block_tokens:
        said = unasked if found is None else found.miss or Miss(found.reason)
        miss = final_miss(said, reach, block_tokens)
    times = (found.compute_s, found.load_s) if found is not None else (0.0, 0.0)
    return Forecast(tokens, miss, *times, store)


def _beyond(tiers: Mapping[str, int], tokens: int) -> dict[str, int]:
    """The tiers' counts without the first `tokens` tokens; the nearer a tier, the earlier in the prompt its part."""
    left: dict[str, int] = {}
    for tier in (*TIERS[1:-1], REMOTE):
        count = tiers.get(tier, 0)
        passed = min(count, tokens)
        tokens -= passed
        if count > passed:
            left[tier] = count - passed
    return left
