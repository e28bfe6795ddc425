"""Tiers and reasons that receipts may name. Receipts come from clients, and labels of metrics must be few: what is not
named here counts as OTHER."""

OTHER = "other"
TIERS = frozenset({"hbm", "dram", "nvme", "peer", "remote", "computed"})
REASONS = frozenset(
    {
        "never_seen",
        "evicted",
        "corrupt",
        "cleared",
        "diverged",
        "other_namespace",
        "not_committed",
        "computing",
        "deadline",
        "slower_to_load",
        "full",
        "quota",
        "io",
        "breaker",
        "busy",
        "disconnected",
        "error",
        "not_in_hbm",
        "cache_off",
        "no_pages",
        "cancelled",
        "stale",
    }
)


def tier_name(name: str) -> str:
    return name if name in TIERS else OTHER


def reason_name(name: str) -> str:
    return name if name in REASONS else OTHER
