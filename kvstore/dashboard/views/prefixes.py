"""What is stored: the prefixes that are asked for most, each with what can be done to it."""

from collections.abc import Mapping

from ....proto import kv_pb2 as pb
from .. import text
from ..snapshot import Snapshot
from . import TIER_NAMES, TIERS, View
from .spaces import SHORT_KEY
from .traffic import mix

TEXT_CHARS = 160


def prefixes(seen: Snapshot) -> View:
    """A table, hottest first. A click on a row opens `prefix_sheet`."""
    listing = seen.slow.prefixes
    return {
        "columns": [
            {"id": "name", "name": "Prefix", "kind": "open"},
            {"id": "hits", "name": "Hits", "kind": "number"},
            {"id": "size", "name": "Size", "kind": "number"},
            {"id": "tokens", "name": "Tokens", "kind": "number", "wide": True},
            {"id": "where", "name": "Where", "kind": "mix", "wide": True},
            {"id": "idle", "name": "Used", "kind": "number", "wide": True},
        ],
        "rows": [_row(each) for each in listing.prefixes],
        "note": f"{text.plural(listing.total, 'run of blocks', 'runs of blocks')}{' looked at' * listing.partial}"
        if listing.total
        else "",
        "empty": "Nothing is stored yet.",
    }


def prefix_sheet(found: pb.PrefixStatus, may_change: bool) -> View:
    """All that is known of one prefix, and what can be done to it."""
    kept = found.retention
    facts = [
        ("Key", found.key.hex()),
        ("Model", found.label or found.fingerprint.hex()[:SHORT_KEY]),
        *([("Tenant", found.tenant)] if found.tenant else []),
        ("Prefix", f"{text.count(found.prefix_tokens)} tokens from the prompt's start"),
        ("This run", f"{text.plural(found.blocks, 'block')}, from block {found.first_block} on"),
        *((TIER_NAMES.get(tier, tier), where) for tier, where in _places(found).items()),
        ("Hits", text.count(found.hits)),
        ("Stored", f"{text.ago(found.age_s)} ago" if found.age_s >= 1 else "now"),
        ("Last used", f"{text.ago(found.idle_s)} ago" if found.idle_s >= 1 else "now"),
        (
            "Below it",
            f"{text.plural(found.below_blocks, 'block')} in {text.plural(found.children, 'branch', 'branches')}",
        ),
        ("Kept", _retention(found)),
        *([("In use by", text.plural(found.leases, "lease"))] if found.leases else []),
    ]
    pinned = kept.pinned or found.pinned_blocks > 0
    acts = [
        {"id": "unpin", "name": "Unpin"} if pinned else {"id": "pin", "name": "Pin"},
        {"id": "clear", "name": "Clear…", "tone": "bad"},
    ]
    return {
        "title": "Prefix",
        "quote": found.text,
        "groups": [{"rows": facts}],
        "acts": acts if may_change else [],
        "note": "" if may_change else "Changing it takes the role operator.",
    }


def _row(found: pb.PrefixStatus) -> View:
    name = found.text.strip().replace("\n", " ⏎ ")[:TEXT_CHARS]
    size = sum(found.tier_bytes.values())
    label = found.label or found.fingerprint.hex()[:SHORT_KEY]
    marks = ["pinned"] * bool(found.retention.pinned or found.pinned_blocks) + ["in use"] * bool(found.leases)
    return {
        "id": found.key.hex(),
        "name": {
            "text": name or found.key.hex()[:SHORT_KEY],
            "code": not name,
            "sub": " · ".join([label, *([found.tenant] if found.tenant else [])]),
            "marks": marks,
        },
        "hits": {"text": text.count(found.hits), "order": found.hits},
        "size": {"text": text.size(size), "order": size},
        "tokens": {"text": text.count(found.prefix_tokens), "order": found.prefix_tokens},
        "where": {"mix": mix(_blocks(found))},
        "idle": {"text": text.ago(found.idle_s), "order": found.idle_s},
    }


def _blocks(found: pb.PrefixStatus) -> Mapping[str, int]:
    return {tier: found.tier_blocks[tier] for tier in TIERS if found.tier_blocks.get(tier)}


def _places(found: pb.PrefixStatus) -> Mapping[str, str]:
    return {
        tier: f"{text.plural(number, 'block')}, {text.size(found.tier_bytes.get(tier, 0))}"
        for tier, number in _blocks(found).items()
    }


def _retention(found: pb.PrefixStatus) -> str:
    kept = found.retention
    said = [
        "pinned"
        if kept.pinned
        else f"{text.plural(found.pinned_blocks, 'block')} pinned"
        if found.pinned_blocks
        else "",
        f"priority {kept.priority}",
        f"for {text.seconds(kept.ttl_s)}" if kept.ttl_s else "",
    ]
    return ", ".join(each for each in said if each)
