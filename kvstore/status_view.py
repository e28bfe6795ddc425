"""A sidecar's status for people (rich tables) and for programs (JSON)."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message
from rich.table import Table
from rich.text import Text

from ..proto import kv_pb2 as pb

_WORDS = frozenset(("tier", "namespace", "label", "path", "state", "tenant"))
SHORT_FINGERPRINT = 12  # hex digits shown in a table; JSON has them all


def status_json(reply: pb.StatusReply) -> str:
    """`reply` under its own field names; bytes in hex, numbers as numbers."""
    return json.dumps(plain(reply), indent=1)


def status_tables(reply: pb.StatusReply) -> Iterator[Table | Text]:
    """Tiers, namespaces, and the counters that tell why reuse was missed."""
    yield Text(f"kvterrace {reply.package_version}, up {duration(reply.uptime_s)}, boot {reply.boot_id.hex()[:8]}")
    tiers = make_table("tiers", "tier", "used", "of", "leased", "being written")
    for tier in reply.tiers:
        sizes = (tier.used_bytes, tier.capacity_bytes, tier.leased_bytes, tier.reserved_bytes)
        tiers.add_row(tier.name, *map(format_bytes, sizes))
    yield tiers
    devices = [device for tier in reply.tiers for device in tier.devices]
    if devices:
        yield _devices(devices)
        yield from _keys(devices)
    spaces = make_table("namespaces", "namespace", "label", "blocks", "bytes", "hit tokens", "miss tokens", "sessions")
    for space in reply.namespaces:
        counts = (space.hit_tokens, space.miss_tokens, space.sessions)
        name = space.fingerprint.hex()[:SHORT_FINGERPRINT]
        spaces.add_row(name, space.label, f"{space.blocks:,}", format_bytes(space.bytes), *(f"{n:,}" for n in counts))
    yield spaces
    if reply.tenants:
        yield _tenants(reply.tenants)
    if reply.HasField("cluster"):
        yield from _cluster(reply.cluster)
    if reply.HasField("drain"):
        said = reply.drain
        yield Text(f"draining: {said.phase}, {said.handed_blocks:,} blocks handed over, {said.waiting_blocks:,} to go")
    for title, unit, column in (
        ("misses", "tokens", reply.counters.miss_tokens),
        ("evictions", "blocks", reply.counters.evictions),
        ("dropped saves", "blocks", reply.counters.dropped_saves),
        ("brought up", "blocks", reply.counters.promoted_blocks),
        ("written down", "blocks", reply.counters.demoted_blocks),
        ("not written down", "blocks", reply.counters.dropped_demotions),
        ("failed loads", "blocks", reply.counters.failed_loads),
    ):
        if column:
            yield Text(f"{title} ({unit}): {_counts(column)}")
    if reply.counters.checksum_failures:
        yield Text(f"checksum failures: {reply.counters.checksum_failures:,}")


def _tenants(tenants: Sequence[pb.TenantStatus]) -> Table:
    table = make_table("tenants", "tenant", "tier", "used", "quota", "floor", "hit tokens", "miss tokens")
    for tenant in tenants:
        counts = f"{tenant.hit_tokens:,}", f"{tenant.miss_tokens:,}"
        for tier, used in sorted(tenant.used_bytes.items()):
            quota = f"{tier}_quota"
            limit = format_bytes(getattr(tenant, quota)) if tenant.HasField(quota) else "-"
            floor = format_bytes(getattr(tenant, f"{tier}_floor"))
            table.add_row(tenant.name or "default", tier, format_bytes(used), limit, floor, *counts)
            counts = "", ""
    return table


def _cluster(cluster: pb.ClusterStatus) -> Iterator[Table | Text]:
    state = "connected" if cluster.connected else "without Valkey"
    joined = "" if cluster.joined else ", not a member"
    yield Text(
        f"cluster {cluster.name} at {cluster.valkey}: {state}{joined}, {cluster.marks:,} marks, "
        f"{cluster.backlog:,} not announced"
    )
    yield Text(
        f"replicas {format_bytes(cluster.replica_bytes)}; used lately {format_bytes(cluster.hot_bytes)}, "
        f"of it nowhere else {format_bytes(cluster.hot_last_bytes)}"
    )
    if cluster.last_error:
        yield Text(f"last trouble: {cluster.last_error}")
    if cluster.warming:
        yield Text(f"warming: {cluster.warming}")
    members = make_table("members", "node", "address", "epoch", "version", "state")
    for each in sorted(cluster.members, key=lambda member: member.node):
        mine = "this one" if each.node == cluster.node else each.state or "ok"
        version = f"{each.package_version} (wire {each.wire_version})"
        members.add_row(each.node, each.grpc, each.epoch.hex()[:8], version, f"{mine}{', draining' * each.draining}")
    yield members


def _devices(devices: list[pb.DeviceStatus]) -> Table:
    table = make_table("nvme paths", "path", "state", "on disk", "of", "live", "written", "of it moved", "errors")
    for device in devices:
        moved = device.written_bytes - device.accepted_bytes
        sizes = (device.used_bytes, device.capacity_bytes, device.live_bytes, device.written_bytes, moved)
        table.add_row(device.path, device.state, *map(format_bytes, sizes), f"{device.errors:,}")
    return table


def _keys(devices: list[pb.DeviceStatus]) -> Iterator[Text]:
    """What encryption at rest did; nothing where there is none."""
    for device in devices:
        counts = {
            "written": device.encrypted_blocks,
            "not opened by their key": device.open_failures,
            "dropped, key missing": device.key_missing_blocks,
            "dropped, in clear": device.clear_dropped_blocks,
        }
        if any(counts.values()):
            said = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
            yield Text(f"{device.path} encrypted (blocks): {said}")


def format_bytes(size: int) -> str:
    """ "1.5 GiB" and the like."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def count(number: int, noun: str) -> str:
    """ "1 block", "1,200 blocks"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def make_table(title: str, *columns: str) -> Table:
    """Columns of words are set left, others right."""
    made = Table(title=title, title_justify="left")
    for column in columns:
        made.add_column(column, justify="left" if column in _WORDS else "right")
    return made


def _counts(column: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(column.items()))


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def plain(value: Any) -> Any:
    """For JSON: a message under its fields' own names, bytes in hex; what is not set, and might be, is null."""
    if isinstance(value, Message):
        return {field.name: _field(value, field) for field in value.DESCRIPTOR.fields}
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str | int | float):
        return value
    # A map of the protocol buffers, or else a repeated field.
    return dict(value) if hasattr(value, "items") else [plain(item) for item in value]


def _field(message: Message, field: Any) -> Any:
    if field.has_presence and not message.HasField(field.name):
        return None
    return plain(getattr(message, field.name))
