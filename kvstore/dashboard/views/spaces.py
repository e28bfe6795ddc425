"""Who uses the store: namespaces, tenants; and the other nodes."""

from collections.abc import Sequence

from ....proto import kv_pb2 as pb
from ...stats import NamespaceStats
from ...tenants.tenants import DEFAULT, SHARED, TenantStats
from .. import text
from ..snapshot import Snapshot
from . import View

SHORT_KEY = 12  # hex digits that are shown


def namespaces(seen: Snapshot) -> View:
    """A table: the models, each with what it holds and hits."""
    found = [each for each in seen.stats.namespaces if seen.sees(each.fingerprint)]
    return {
        "columns": [
            {"id": "name", "name": "Model", "kind": "open"},
            {"id": "hit", "name": "Hit", "kind": "number"},
            {"id": "size", "name": "In DRAM", "kind": "number"},
            {"id": "asked", "name": "Asked for", "kind": "number", "wide": True},
            {"id": "sessions", "name": "Engines", "kind": "number", "wide": True},
        ],
        "rows": [_namespace(each) for each in sorted(found, key=lambda each: -each.bytes)],
        "empty": "No engine has connected yet. Start one with kvterrace engine MODEL --kv-connector sidecar.",
    }


def tenants(seen: Snapshot) -> View | None:
    """A table; None where nobody shares the store."""
    found = [each for each in seen.stats.tenants if seen.whole]
    if not found:
        return None
    return {
        "columns": [
            {"id": "name", "name": "Tenant", "kind": "open"},
            {"id": "hit", "name": "Hit", "kind": "number"},
            {"id": "dram", "name": "DRAM", "kind": "meter"},
            {"id": "nvme", "name": "NVMe", "kind": "meter", "wide": True},
            {"id": "sessions", "name": "Engines", "kind": "number", "wide": True},
        ],
        "rows": [_tenant(each) for each in found],
        "empty": "",
    }


def cluster(seen: Snapshot) -> View | None:
    """A table of the members, and what is to say of the cluster; None for a node that is alone."""
    if seen.cluster is None:
        return None
    said = seen.cluster
    return {
        "note": _cluster_note(said),
        "trouble": _cluster_trouble(said),
        "columns": [
            {"id": "node", "name": "Node"},
            {"id": "state", "name": "State", "kind": "state"},
            {"id": "address", "name": "Address", "wide": True},
            {"id": "version", "name": "Version", "wide": True},
        ],
        "rows": [_member(each, said.node) for each in sorted(said.members, key=lambda each: each.node)],
        "empty": "No member is known.",
    }


def namespace_sheet(seen: Snapshot, fingerprint: str, may_change: bool) -> View | None:
    """All that is known of one; None: it is not here any more."""
    found = [each for each in seen.stats.namespaces if each.fingerprint.hex() == fingerprint]
    if not found or not seen.sees(found[0].fingerprint):
        return None
    space = found[0]
    facts = [
        ("Model", space.label or "without a name"),
        ("Fingerprint", fingerprint),
        *([("Tenant", space.tenant)] if space.tenant else []),
        ("In DRAM", f"{text.plural(space.blocks, 'block')}, {text.size(space.bytes)}"),
        ("A block takes", text.size(space.slot_bytes)),
        ("Hit", f"{hit_share(space.hit_tokens, space.miss_tokens)[0]}, {text.count(space.hit_tokens)} tokens"),
        ("Missed", f"{text.count(space.miss_tokens)} tokens"),
        ("Engines", text.count(space.sessions)),
    ]
    return {"title": "Model", "groups": [{"rows": facts}], **_acts(may_change)}


def tenant_sheet(seen: Snapshot, name: str, may_change: bool) -> View | None:
    """All that is known of one; None: there is none of that name."""
    found = next((each for each in seen.stats.tenants if each.name == name and seen.whole), None)
    if found is None:
        return None
    facts = [
        ("Tenant", tenant_name(name)),
        ("DRAM", _limits(found.used.get("dram", 0), found.limits.dram_quota, found.limits.dram_floor)),
        ("NVMe", _limits(found.used.get("nvme", 0), found.limits.nvme_quota, found.limits.nvme_floor)),
        ("Hit", f"{hit_share(found.hit_tokens, found.miss_tokens)[0]}, {text.count(found.hit_tokens)} tokens"),
        ("Missed", f"{text.count(found.miss_tokens)} tokens"),
        ("Engines", text.count(found.sessions)),
    ]
    one = name not in (DEFAULT, SHARED)
    return {"title": "Tenant", "groups": [{"rows": facts}], **(_acts(may_change) if one else {"acts": []})}


def tenant_name(name: str) -> str:
    """As people read it."""
    return {DEFAULT: "default", SHARED: "shared heads"}.get(name, name)


def _acts(may_change: bool) -> View:
    if not may_change:
        return {"acts": [], "note": "Changing it takes the role operator."}
    pins = [{"id": "pin", "name": "Pin all"}, {"id": "unpin", "name": "Unpin all"}]
    return {"acts": [*pins, {"id": "clear", "name": "Clear…", "tone": "bad"}]}


def hit_share(hit_tokens: int, miss_tokens: int) -> tuple[str, float]:
    """As text, and to sort by."""
    asked = hit_tokens + miss_tokens
    return (text.share(hit_tokens / asked), hit_tokens / asked) if asked else ("–", -1.0)


def _namespace(space: NamespaceStats) -> View:
    hit, order = hit_share(space.hit_tokens, space.miss_tokens)
    name = space.fingerprint.hex()[:SHORT_KEY]
    asked = space.hit_tokens + space.miss_tokens
    return {
        "id": space.fingerprint.hex(),
        "name": {"text": space.label or name, "sub": f"{f'{space.tenant} · ' if space.tenant else ''}{name}"},
        "hit": {"text": hit, "order": order},
        "size": {"text": text.size(space.bytes), "order": space.bytes},
        "asked": {"text": f"{text.count(asked)} tokens", "order": asked},
        "sessions": {"text": text.count(space.sessions), "order": space.sessions},
    }


def _tenant(tenant: TenantStats) -> View:
    hit, order = hit_share(tenant.hit_tokens, tenant.miss_tokens)
    limits, used = tenant.limits, tenant.used
    return {
        "id": tenant.name,
        "name": {"text": tenant_name(tenant.name)},
        "hit": {"text": hit, "order": order},
        "dram": _quota(used.get("dram", 0), limits.dram_quota, limits.dram_floor),
        "nvme": _quota(used.get("nvme", 0), limits.nvme_quota, limits.nvme_floor),
        "sessions": {"text": text.count(tenant.sessions), "order": tenant.sessions},
    }


def _limits(used_bytes: int, quota: int | None, floor: int) -> str:
    limits = [f"of {text.size(quota)}" if quota is not None else "no quota"]
    limits += [f"{text.size(floor)} assured"] if floor else []
    return f"{text.size(used_bytes)}, {', '.join(limits)}"


def _quota(used_bytes: int, quota: int | None, floor: int) -> View:
    used, _, limits = _limits(used_bytes, quota, floor).partition(", ")
    return {
        "text": used,
        "sub": limits,
        "share": used_bytes / quota if quota else None,
        "order": used_bytes,
    }


def _member(member: pb.MemberStatus, own: str) -> View:
    mine, trouble = member.node == own, member.state not in ("", "ok")
    words = "draining" if member.draining else member.state if trouble else "this node" if mine else "linked"
    return {
        "id": member.node,
        "node": {"text": member.node},
        "state": {"text": words, "tone": "warn" if member.draining else "bad" if trouble else "good"},
        "address": {"text": member.grpc},
        "version": {"text": member.package_version},
    }


def _cluster_note(said: pb.ClusterStatus) -> str:
    notes: Sequence[str] = [
        f"{said.name} through {said.valkey}, {text.seconds(said.round_trip_s)} away"
        if said.round_trip_s
        else f"{said.name} through {said.valkey}",
        f"{text.size(said.replica_bytes)} here are copies of what others have",
        f"{text.size(said.hot_last_bytes)} used lately are nowhere else",
    ]
    return " · ".join(notes)


def _cluster_trouble(said: pb.ClusterStatus) -> str:
    if not said.connected:
        return (
            f"Valkey does not answer{f': {said.last_error}' if said.last_error else ''}. This node serves what it has."
        )
    return "" if said.joined else "This node is no member at the moment; it joins again by itself."
