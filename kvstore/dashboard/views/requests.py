"""The last requests, and the receipt of one."""

from collections.abc import Sequence

from ....proto import kv_pb2 as pb
from .. import text
from ..snapshot import Snapshot
from . import TIER_NAMES, View
from .spaces import SHORT_KEY
from .tiers import reason_name
from .traffic import mix


def requests(seen: Snapshot) -> View:
    """A table, newest first. A click on a row opens `receipt_sheet`. How long ago they were the browser says itself, so
    that this need not be made anew while nothing is served."""
    return {
        "now": round(seen.now_s, 3),
        "columns": [
            {"id": "ago", "name": "Ago", "kind": "ago"},
            {"id": "request", "name": "Request", "kind": "open"},
            {"id": "prompt", "name": "Prompt", "kind": "number", "wide": True},
            {"id": "mix", "name": "From", "kind": "mix"},
            {"id": "ttft", "name": "First token", "kind": "number"},
            {"id": "why", "name": "Why not more", "wide": True},
        ],
        "rows": [_row(each) for each in seen.last.receipts],
        "note": f"{text.count(seen.last.total)} since the start" if seen.last.total and seen.whole else "",
        "empty": "No engine has told of a request yet. Receipts come with the first answers.",
    }


def receipt_sheet(receipt: pb.Receipt, why: Sequence[str]) -> View:
    """why: sentences."""
    total = sum(receipt.tokens.values())
    where = [
        (
            TIER_NAMES.get(each["tier"], each["tier"]),
            f"{text.count(each['tokens'])} tokens, {text.share(each['share'])}",
        )
        for each in mix(receipt.tokens)
    ]
    times = [
        ("First token after", text.seconds(receipt.ttft_s)),
        ("of it queued", text.seconds(receipt.queue_wait_s)),
        ("of it waited for the cache", text.seconds(receipt.cache_wait_s)),
        *([("of it computed", text.seconds(receipt.computed_s))] if receipt.computed_s else []),
        ("Saved by the cache", text.seconds(receipt.saved_s) if receipt.HasField("saved_s") else "not known"),
    ]
    about = [
        ("Request", receipt.request_id),
        ("Model", receipt.label or receipt.fingerprint.hex()[:SHORT_KEY]),
        *([("Tenant", receipt.tenant)] if receipt.tenant else []),
        *([("Engine", receipt.client)] if receipt.client else []),
        ("Prompt", f"{text.count(total)} tokens"),
    ]
    return {
        "title": "Receipt",
        "mix": mix(receipt.tokens),
        "lead": list(why),
        "groups": [
            {"title": "Where its tokens came from", "rows": where},
            {"title": "Time", "rows": times},
            {"rows": about},
        ],
        "acts": [],
        "note": "",
    }


def receipt_id(receipt: pb.Receipt) -> str:
    """Of its row: ids of requests may come twice."""
    return f"{receipt.request_id}@{receipt.time_s:.6f}"


def _row(receipt: pb.Receipt) -> View:
    total = sum(receipt.tokens.values())
    reason = receipt.miss.reason if receipt.HasField("miss") else ""
    return {
        "id": receipt_id(receipt),
        "ago": {"at": round(receipt.time_s, 3), "order": -receipt.time_s},
        "request": {
            "text": receipt.request_id or "without an id",
            "code": True,
            "sub": receipt.label or receipt.fingerprint.hex()[:SHORT_KEY],
        },
        "prompt": {"text": text.count(total), "order": total},
        "mix": {"mix": mix(receipt.tokens)},
        "ttft": {"text": text.seconds(receipt.ttft_s), "order": receipt.ttft_s},
        "why": {"text": reason_name(reason) if reason else "all of it was found", "tone": "soft" if not reason else ""},
    }
