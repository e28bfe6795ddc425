"""The `usage` object of an answer: OpenAI's counts, and the receipt of where the prompt's KV came from."""

from collections.abc import Collection

from ..request import TIERS, Receipt


def usage_object(prompt_tokens: int, completion_tokens: int, receipts: Collection[Receipt]) -> dict[str, object]:
    """One receipt a prompt; those of several prompts are added up. Waits are the longest, the reason the first; seconds
    saved are null when those of one prompt are not known."""
    tokens: dict[str, int] = dict.fromkeys(TIERS, 0)
    for receipt in receipts:
        for tier, count in receipt.tokens.items():
            tokens[tier] = tokens.get(tier, 0) + count
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(tokens.values()) - tokens["computed"]},
        "kvterrace": {
            "tokens": tokens,
            "miss_reason": next((receipt.miss_reason for receipt in receipts if receipt.miss_reason), ""),
            "queue_wait_s": round(max((receipt.queue_wait_s for receipt in receipts), default=0.0), 6),
            "cache_wait_s": round(max((receipt.cache_wait_s for receipt in receipts), default=0.0), 6),
            "saved_s": _saved(receipts),
        },
    }


def _saved(receipts: Collection[Receipt]) -> float | None:
    known = [receipt.saved_s for receipt in receipts if receipt.saved_s is not None]
    return round(sum(known), 6) if len(known) == len(receipts) else None
