"""Which role may make which call, and what of an administrative call is written to the audit log.

A call that is not in the table is refused. A new one is one line here: its name, the roles, and, when it changes what
others rely on, what the audit log says of its request (and of its reply).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from .identity import Role

Details: TypeAlias = Callable[[Any], Mapping[str, object]]

SERVICE = "/kvterrace.v1.KVStore/"
QUOTA_FIELDS = ("dram_quota", "dram_floor", "nvme_quota", "nvme_floor")
_LOOK = frozenset({Role.READER, Role.OPERATOR})
_OPERATE = frozenset({Role.OPERATOR})
_SERVE = frozenset({Role.ENGINE})
_NODE = frozenset({Role.NODE})


@dataclass(frozen=True, slots=True)
class Call:
    """roles: one of them is needed. asked: what the audit log says of the request, None = the call is not audited;
    came: and of the reply."""

    roles: frozenset[Role]
    asked: Details | None = None
    came: Details | None = None


def _nothing(_: Any) -> Mapping[str, object]:
    return {}


def _space(request: Any) -> Mapping[str, object]:
    tenant, key = getattr(request, "tenant", ""), getattr(request, "key", b"")
    where = {"tenant": tenant} if tenant else {}
    if key:
        where["key"] = key.hex()
    if request.fingerprint or not where:
        where["namespace"] = request.fingerprint.hex()[:64] or "all"
    return {**where, **({"dry_run": True} if request.dry_run else {})}


def _cleared(request: Any) -> Mapping[str, object]:
    return {**_space(request), **({"tokens": len(request.tokens) // 4} if request.tokens else {})}


def _limits(request: Any) -> Mapping[str, object]:
    return {"tenant": request.tenant, **{name: getattr(request, name) for name in QUOTA_FIELDS if name in request.set}}


def _retained(request: Any) -> Mapping[str, object]:
    said = request.retention
    wishes = {"priority": said.priority, "ttl_s": said.ttl_s, "pinned": said.pinned}
    chosen = {name: wishes[name] for name in wishes if name in request.set}
    below = {"below": True} if request.below else {}
    return {**_space(request), "tokens": len(request.tokens) // 4, **below, **chosen}


def _draining(request: Any) -> Mapping[str, object]:
    return {"deadline_s": request.deadline_s, "stay": request.stay}


def _blocks(reply: Any) -> Mapping[str, object]:
    return {"blocks": reply.blocks}


CALLS: dict[str, Call] = {
    "Session": Call(_SERVE),
    "Status": Call(_LOOK),
    "Clear": Call(_OPERATE, _cleared, _blocks),
    "Retain": Call(_OPERATE, _retained, _blocks),
    "SetQuota": Call(_OPERATE, _limits),
    "Flush": Call(_OPERATE, _nothing),
    "Trace": Call(_OPERATE, _nothing),
    "Fetch": Call(_NODE),
    "Hottest": Call(_NODE),
    "TakeOver": Call(_NODE),
    "Drain": Call(_OPERATE, _draining),
    "Events": Call(_LOOK),
    "Score": Call(_LOOK | _NODE),
    "Receipts": Call(_LOOK),
    "Explain": Call(_LOOK),
    "Prefixes": Call(_LOOK),
    "Insight": Call(_LOOK),
    "Warm": Call(_OPERATE),
}


def call_of(method: str) -> Call | None:
    """Of a full method name, such as "/kvterrace.v1.KVStore/Clear"."""
    return CALLS.get(method.removeprefix(SERVICE)) if method.startswith(SERVICE) else None
