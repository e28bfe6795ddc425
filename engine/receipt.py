"""How a request's prompt tokens are credited to the tiers, and the seconds to the store. Pure functions; the rule is:
credited once, at first use, and always summing to the prompt."""

from collections.abc import Mapping

from ..connector.base import Miss
from .request import TIERS

HIT_SHARE = 0.5  # of the prompt reused, from which on its latency counts among the hits'


def tokens_by_tier(prompt_tokens: int, reused: int, loaded: Mapping[str, int]) -> dict[str, int]:
    """reused: prompt tokens whose KV was there when the request first ran; loaded: those of them that the store
    brought, by tier. The rest of the reused came from HBM, the rest of the prompt is computed."""
    tokens: dict[str, int] = dict.fromkeys(TIERS, 0)
    left = reused
    for tier, count in loaded.items():
        taken = min(count, left)
        tokens[tier] = tokens.get(tier, 0) + taken
        left -= taken
    tokens["hbm"] += left
    tokens["computed"] = prompt_tokens - reused
    return tokens


def saved_seconds(loaded: Mapping[str, int], compute_s: float, cache_wait_s: float) -> float | None:
    """See Receipt.saved_s. compute_s: of the loaded tokens; 0 = not known."""
    if not compute_s and any(loaded.values()):
        return None
    return compute_s - cache_wait_s


def final_miss(miss: Miss, first: int, block_tokens: int) -> Miss:
    """Why the block at token `first` was computed, as far as `miss` says it: it may be about an earlier block, one that
    came into HBM since, and is then true of this one in its reason at most."""
    if first <= miss.token < first + block_tokens:
        return miss
    follows = "never_seen" if miss.reason in {"diverged", "other_namespace"} else miss.reason
    return Miss(follows, first)


def is_hit(cached_tokens: int, prompt_tokens: int) -> bool:
    """Whether a request counts among the hits."""
    return cached_tokens >= HIT_SHARE * prompt_tokens


def shorten(tiers: Mapping[str, int], tokens: int) -> dict[str, int]:
    """The tiers' counts cut to `tokens` in all."""
    result: dict[str, int] = {}
    for tier, count in tiers.items():
        result[tier] = min(count, tokens)
        tokens -= result[tier]
    return result
