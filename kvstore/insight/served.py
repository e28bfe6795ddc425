"""Served: what all receipts so far come to. Only grows; what metrics read."""

from collections import Counter
from dataclasses import dataclass, field

from ..spread import TTFT_BOUNDS_S, Spread
from ..types import Receipt
from .names import reason_name, tier_name


def _ttft() -> Spread:
    return Spread(TTFT_BOUNDS_S)


def reused_half(receipt: Receipt) -> bool:
    """Whether at least half of the prompt was reused: what is called a hit where times are told."""
    prompt = sum(receipt.tokens.values())
    return prompt > 0 and 2 * receipt.tokens.get("computed", 0) <= prompt


@dataclass(slots=True)
class Served:
    """tokens: of prompts, by tier. misses: requests by why their first missing block was missing. saved_s: seconds of
    prefill spared, less the wait, of requests that won; lost_s: of those that lost. ttft_s: of requests of which at
    least half of the prompt was reused ("hit"), and of the others ("miss")."""

    requests: int = 0
    tokens: Counter[str] = field(default_factory=Counter[str])
    misses: Counter[str] = field(default_factory=Counter[str])
    saved_s: float = 0.0
    lost_s: float = 0.0
    ttft_s: dict[str, Spread] = field(default_factory=lambda: {"hit": _ttft(), "miss": _ttft()})

    def add(self, receipt: Receipt) -> None:
        self.requests += 1
        for tier, count in receipt.tokens.items():
            self.tokens[tier_name(tier)] += count
        if receipt.miss is not None:
            self.misses[reason_name(receipt.miss.reason)] += 1
        saved_s = receipt.saved_s or 0.0
        self.saved_s += max(saved_s, 0.0)
        self.lost_s += max(-saved_s, 0.0)
        if receipt.ttft_s > 0:
            self.ttft_s["hit" if reused_half(receipt) else "miss"].add(receipt.ttft_s)
