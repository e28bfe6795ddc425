"""The `usage` object of an answer: OpenAI's counts, and the receipt of where the prompt's KV came from."""

from collections.abc import Collection
from typing import Any

from ...connector import Miss
from ..request import TIERS, Receipt


def usage_object(
    prompt_tokens: int, completion_tokens: int, receipts: Collection[Receipt], *, grain: int = 1
) -> dict[str, object]:
    """One receipt a prompt; those of several prompts are added up. Waits are the longest, the miss the first; seconds
    saved are null when those of one prompt are not known. grain: see miss_object."""
    tokens: dict[str, int] = dict.fromkeys(TIERS, 0)
    for receipt in receipts:
        for tier, count in receipt.tokens.items():
            tokens[tier] = tokens.get(tier, 0) + count
    miss = next((receipt.miss for receipt in receipts if receipt.miss is not None), None)
    firsts = [receipt.ttft_s for receipt in receipts if receipt.ttft_s is not None]
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(tokens.values()) - tokens["computed"]},
        "kvterrace": {
            "request_id": next((receipt.request_id.partition("/")[0] for receipt in receipts), ""),
            "tokens": tokens,
            "miss_reason": miss.reason if miss is not None else "",
            "miss": miss_object(miss, grain),
            "queue_wait_s": round(max((receipt.queue_wait_s for receipt in receipts), default=0.0), 6),
            "cache_wait_s": round(max((receipt.cache_wait_s for receipt in receipts), default=0.0), 6),
            "saved_s": _saved(receipts),
            "ttft_s": round(max(firsts), 6) if firsts and len(firsts) == len(receipts) else None,
            "computed_s": round(sum(receipt.computed_s for receipt in receipts), 6),
        },
    }


def receipt_object(receipt: Receipt) -> dict[str, object]:
    """One request's, for operators."""
    usage: Any = usage_object(receipt.prompt_tokens, 0, [receipt])["kvterrace"]
    own = {"request_id": receipt.request_id, "time_s": receipt.time_s, "prompt_tokens": receipt.prompt_tokens}
    return {**own, **{name: value for name, value in usage.items() if name != "request_id"}}


def miss_object(miss: Miss | None, grain: int = 1) -> dict[str, object] | None:
    """What a miss tells. The cached tokens are not in it: they are somebody else's.

    grain: the token is told as a multiple of it. Who may not know what others cached is told the block (its tokens),
    not the token: by the exact one a prompt could be guessed token after token, instead of a whole block at once.
    """
    if miss is None:
        return None
    return {
        "reason": miss.reason,
        "token": miss.token // grain * grain,
        "tier": miss.tier,
        "gone_s": round(miss.gone_s, 3),
        "kept_s": round(miss.kept_s, 3),
        "fields": list(miss.fields),
    }


def _saved(receipts: Collection[Receipt]) -> float | None:
    known = [receipt.saved_s for receipt in receipts if receipt.saved_s is not None]
    return round(sum(known), 6) if len(known) == len(receipts) else None
