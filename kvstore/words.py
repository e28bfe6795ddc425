"""Words: receipts and misses in sentences that a colleague understands. The same for the command line and the
dashboard."""

from collections.abc import Callable, Mapping

from ..proto import kv_pb2 as pb

NEAR_FIRST = ("hbm", "dram", "nvme", "peer", "remote")
BEHIND_HBM = NEAR_FIRST[1:]
COMPUTED = "computed"
KINDS = {
    "timestamp": "a date or time differs",
    "id": "an id differs",
    "number": "a number differs",
    "reordered": "the same parts come in another order",
    "changed": "some words differ",
    "unknown": "something differs",
}
"""Of a finding of lint, in words."""
_TIERS = {
    "hbm": "the engine's HBM",
    "dram": "DRAM",
    "nvme": "NVMe",
    "peer": "another node",
    "remote": "the remote store",
    COMPUTED: "",
}


def receipt_sentences(receipt: pb.Receipt) -> list[str]:
    """What one request got, what it waited for, and why the rest was computed."""
    total, computed = sum(receipt.tokens.values()), receipt.tokens.get(COMPUTED, 0)
    lines = [f"Of {total:,} prompt tokens, {tokens_by_tier(receipt)}."]
    if receipt.ttft_s:
        waits = [
            f"{said(seconds)} {what}"
            for seconds, what in ((receipt.queue_wait_s, "in the queue"), (receipt.cache_wait_s, "for the cache"))
            if seconds > 0
        ]
        waited = f", of which {' and '.join(waits)}" if waits else ""
        lines.append(f"The first token came {said(receipt.ttft_s)} after the request{waited}.")
    if receipt.HasField("saved_s"):
        lines.append(_saved(receipt.saved_s, loaded=any(receipt.tokens.get(tier, 0) for tier in BEHIND_HBM)))
    if receipt.HasField("miss"):
        lines += miss_sentences(receipt.miss)
    elif total and total != computed:
        lines.append("Every full block was found; what was computed is behind the last of them.")
    return lines


def tokens_by_tier(receipt: pb.Receipt | pb.ExplainReply, *, would: bool = False) -> str:
    """ "2,048 came from DRAM and 735 were computed", or that they would come."""
    come, be = ("would come", "would be computed") if would else ("came", "were computed")
    parts = [f"{receipt.tokens[tier]:,} {come} from {tier_name(tier)}" for tier in in_order(receipt.tokens)]
    computed = receipt.tokens.get(COMPUTED, 0)
    if computed or not parts:
        parts.append(f"{f'{computed:,}' if parts else 'all'} {be}")
    return f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]


def in_order(tokens: Mapping[str, int]) -> list[str]:
    """Tiers that gave something, the nearest first; "computed" is none."""
    others = sorted(tier for tier in tokens if tier not in _TIERS)
    return [tier for tier in (*NEAR_FIRST, *others) if tokens.get(tier, 0)]


def tier_name(tier: str) -> str:
    """For people; a tier that is not known keeps its name."""
    return _TIERS.get(tier) or tier


def miss_sentences(miss: pb.Miss) -> list[str]:
    """Why the first missing block was missing, and what helps, as far as something does."""
    say = _REASONS.get(miss.reason)
    if say is None:
        return [f"At token {miss.token:,} reuse ended: {miss.reason}."]
    return [line for line in say(miss) if line]


def said(seconds: float) -> str:
    """ "0.36 s", "12 min", "3 h", "2 days"."""
    if seconds < 120:
        return (
            f"{seconds * 1000:.0f} ms"
            if 0 < seconds < 0.1
            else f"{seconds:.2f} s"
            if seconds < 10
            else f"{seconds:.0f} s"
        )
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.0f} days"


def _saved(seconds: float, *, loaded: bool) -> str:
    if not loaded:
        return f"Nothing was loaded; asking the cache took {said(-seconds)}." if seconds < 0 else "Nothing was loaded."
    if seconds >= 0:
        return f"Loading instead of computing saved about {said(seconds)}."
    return f"Loading took about {said(-seconds)} longer than computing would have."


def _at(miss: pb.Miss) -> str:
    return f"token {miss.token:,}" if miss.token else "the first token"


def _gone(miss: pb.Miss, why: str) -> str:
    tier = f" {tier_name(miss.tier)}" if miss.tier else ""
    when = f" {said(miss.gone_s)} ago" if miss.gone_s else ""
    kept = f", after {said(miss.kept_s)} there" if miss.kept_s else ""
    return f"The block at {_at(miss)} was stored once; it left{tier}{when}{kept}, {why}."


def _never_seen(miss: pb.Miss) -> list[str]:
    if not miss.token:
        return ["No prompt that begins like this one had been stored."]
    return [f"The prompt is like stored ones up to {_at(miss)}; what follows had not been stored."]


def _evicted(miss: pb.Miss) -> list[str]:
    return [
        _gone(miss, "to make room"),
        "More room would have kept it, or a pin (`kvterrace pin`), or a higher priority (`kvterrace priority`).",
    ]


def _corrupt(miss: pb.Miss) -> list[str]:
    return [
        _gone(miss, "since its bytes did not match their checksum"),
        "Look at that disk or memory: `kvterrace doctor`.",
    ]


def _cleared(miss: pb.Miss) -> list[str]:
    return [_gone(miss, "since an operator cleared it")]


def _diverged(miss: pb.Miss) -> list[str]:
    return [
        f"A stored prompt is the same up to {_at(miss)}, and differs there.",
        "What changes from request to request belongs behind what stays the same: `kvterrace lint`.",
    ]


def _other_namespace(miss: pb.Miss) -> list[str]:
    fields = ", ".join(miss.fields) or "something"
    return [
        f"The same tokens are stored from {_at(miss)} on, but for another namespace: {fields} differ"
        f"{'s' if len(miss.fields) == 1 else ''}.",
        "KV is shared only between engines with the same weights, adapter, dtype, layout and tenant.",
    ]


def _below(miss: pb.Miss) -> str:
    return f" in {tier_name(miss.tier)}" if miss.tier else " in a lower tier"


def _held(text: str, *more: str) -> Callable[[pb.Miss], list[str]]:
    """Of a block that is stored and was not used."""
    return lambda miss: [f"The block at {_at(miss)} is{_below(miss)}, {text}.", *more]


def _plainly(text: str, *more: str) -> Callable[[pb.Miss], list[str]]:
    return lambda miss: [f"From {_at(miss)} on nothing was reused: {text}.", *more]


_REASONS: dict[str, Callable[[pb.Miss], list[str]]] = {
    "never_seen": _never_seen,
    "evicted": _evicted,
    "corrupt": _corrupt,
    "cleared": _cleared,
    "diverged": _diverged,
    "other_namespace": _other_namespace,
    "not_committed": _plainly("another request was writing it just then"),
    "computing": _plainly("another request was computing it just then"),
    "deadline": _held("and had not come when the time was over that the request could wait for it"),
    "slower_to_load": _held("but loading it would have taken longer than computing it"),
    "full": _held("but there was no room to bring it up", "All slots were leased or pinned: give DRAM more."),
    "quota": _held("but the tenant's quota left no room to bring it up", "See `kvterrace quota`."),
    "io": _held("and reading it failed", "Look at that disk: `kvterrace status`, `kvterrace doctor`."),
    "breaker": _held(
        "and that tier is out of use after failures", "It is tried again by itself; see `kvterrace status`."
    ),
    "busy": _plainly("the engine held as many leases as it may"),
    "disconnected": _plainly("the engine had no connection to its sidecar", "Is `kvterrace serve` running?"),
    "error": _plainly("the store failed in a way it should not; its log has more"),
    "not_in_hbm": _plainly("it was not in the engine's HBM, and there is no store behind it"),
    "cache_off": _plainly("the cache is turned off for it"),
    "no_pages": _held("but the engine had no free HBM pages to load it into"),
    "cancelled": _plainly("the request was cancelled or preempted while it loaded"),
    "stale": _plainly("the blocks were overwritten while the engine copied them, so it computed them instead"),
}
