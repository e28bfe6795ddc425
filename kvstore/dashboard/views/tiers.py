"""Tiers: how full, what comes and goes, how fast they are, and how long blocks stay. And why tokens were computed."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

from ...stats import StoreStats, TierStats
from .. import text
from ..snapshot import Snapshot
from . import TIER_NAMES, View

SHOWN_REASONS = 5

REASONS = {
    "never_seen": ("new", "nobody has asked for these tokens before"),
    "diverged": ("differs from what is cached", "the prompt shares a cached head and breaks off within a block"),
    "evicted": ("evicted", "it was here, and had to make room"),
    "other_namespace": ("cached for another model", "the same tokens are here, of other weights, layout or tenant"),
    "not_committed": ("being written", "somebody was just saving it"),
    "computing": ("being computed", "somebody else was just computing it"),
    "deadline": ("came too late", "it was on its way from a lower tier when the time was up"),
    "slower_to_load": ("slower to load", "it is in a lower tier, from where computing is faster"),
    "cleared": ("cleared", "an operator has cleared it"),
    "corrupt": ("damaged", "its checksum did not hold, so it was dropped"),
    "full": ("no room", "there was no room to bring it up"),
    "quota": ("over quota", "its tenant's quota left no room"),
    "io": ("device error", "the device failed while it was read"),
    "breaker": ("device out of use", "the device has failed, and is left alone for a while"),
    "busy": ("too busy", "the engine held too many leases"),
    "disconnected": ("store away", "the engine had no connection to the store"),
    "error": ("error", "the store failed; its log says why"),
    "not_in_hbm": ("not in GPU memory", "the engine has no store to ask"),
    "cache_off": ("cache turned off", "the request asked not to reuse anything"),
    "no_pages": ("no pages", "the engine had no free pages to load into"),
    "cancelled": ("cancelled", "the client left"),
    "stale": ("changed meanwhile", "it left the store while it was copied"),
}
"""By reason: a name, and what it means."""


def tiers(seen: Snapshot) -> View:
    """One row a tier, from the nearest to the farthest."""
    churn = _churn(seen)
    rows = [_tier(each, seen.stats, churn) for each in seen.stats.tiers]
    return {"rows": [*_engines(seen), *rows], "foot": _health(seen.stats)}


def misses(seen: Snapshot, window: str) -> View:
    """Tokens that were computed, by the reason, most first."""
    lost = Counter(seen.timelines[window].misses())
    total = sum(lost.values())
    ranked = [(reason, tokens) for reason, tokens in lost.most_common() if tokens]
    rows = [_reason(reason, tokens, total) for reason, tokens in ranked[:SHOWN_REASONS]]
    others = ranked[SHOWN_REASONS:]
    if others:
        hint = ", ".join(reason_name(reason) for reason, _ in others)
        rows.append({**_reason("", sum(tokens for _, tokens in others), total), "label": "other reasons", "hint": hint})
    return {"rows": rows, "empty": f"Nothing that could have been cached was computed in the last {window}."}


def reason_name(reason: str) -> str:
    """In a few words."""
    return REASONS.get(reason, (reason.replace("_", " "), ""))[0]


def _reason(reason: str, tokens: int, total: int) -> dict[str, Any]:
    return {
        "id": reason,
        "label": reason_name(reason),
        "hint": REASONS.get(reason, ("", ""))[1],
        "share": tokens / total,
        "text": text.share(tokens / total),
        "sub": f"{text.count(tokens)} tokens",
    }


def _engines(seen: Snapshot) -> list[View]:
    """What engines have in their own memory; nobody knows how much they could have."""
    if not seen.hbm_blocks:
        return []
    engines = text.plural(len(seen.stats.sessions), "engine")
    return [
        {
            "id": "hbm",
            "tier": "hbm",
            "label": TIER_NAMES["hbm"],
            "share": None,
            "text": text.plural(seen.hbm_blocks, "block"),
            "sub": f"as {engines} report{'s' * (len(seen.stats.sessions) == 1)}",
        }
    ]


def _health(stats: StoreStats) -> list[tuple[str, str]]:
    """What should stay at nothing, or near it."""
    counters = stats.counters
    gone, used = sum(counters.evictions.values()), sum(counters.evictions_reused.values())
    return [
        ("checksum failures", text.count(counters.checksum_failures)),
        ("saves dropped", text.plural(sum(counters.dropped_saves.values()), "block")),
        *([("evicted without a hit", text.share(1 - used / gone))] if gone else []),
    ]


def _tier(tier: TierStats, stats: StoreStats, churn: Mapping[str, tuple[float, float]]) -> View:
    came, left = churn.get(tier.name, (0.0, 0.0))
    facts = [("in", f"{text.size(came)}/s"), ("out", f"{text.size(left)}/s")]
    if tier.bytes_per_s:
        facts.append(("reads at", f"{text.size(tier.bytes_per_s)}/s"))
    if stay := _stay(stats, tier.name):
        facts.append(("evicted after", stay))
    if tier.pinned_blocks:
        facts.append(("pinned", text.plural(tier.pinned_blocks, "block")))
    limited = tier.capacity_bytes > 0
    return {
        "id": tier.name,
        "tier": tier.name,
        "label": TIER_NAMES.get(tier.name, tier.name),
        "share": min(tier.used_bytes / tier.capacity_bytes, 1.0) if limited else 0.0,
        "text": text.share(tier.used_bytes / tier.capacity_bytes) if limited else text.size(tier.used_bytes),
        "sub": f"{text.size(tier.used_bytes)} of {text.size(tier.capacity_bytes)}" if limited else "",
        "facts": facts,
        "trouble": "; ".join(f"{each.path}: {each.state}" for each in tier.devices if each.state != "ok"),
    }


def _churn(seen: Snapshot) -> Mapping[str, tuple[float, float]]:
    """Bytes a second that came to a tier and left it, over the last minute."""
    lately = seen.lately
    seconds = sum(each.seconds for each in lately) or 1.0
    names = {name for each in lately for name in each.tiers}
    found: dict[str, tuple[float, float]] = {}
    for name in names:
        of_it = [each.tiers[name] for each in lately if name in each.tiers]
        came, left = sum(each.came_bytes for each in of_it), sum(each.left_bytes for each in of_it)
        found[name] = came / seconds, left / seconds
    return found


def _stay(stats: StoreStats, tier: str) -> str:
    """How long half of the blocks that left had been there at most; "" while none has."""
    spreads = [each for (name, _), each in stats.counters.residence.items() if name == tier]
    if not spreads:
        return ""
    counts = _sums(each.counts for each in spreads)
    half = sum(counts) / 2
    place = next((i for i, below in enumerate(accumulate(counts)) if below >= half), 0)
    bounds = spreads[0].bounds
    return f"< {text.ago(bounds[place])}" if place < len(bounds) else f"> {text.ago(bounds[-1])}"


def _sums(columns: Iterable[list[int]]) -> list[int]:
    return [sum(each) for each in zip(*columns, strict=True)]
