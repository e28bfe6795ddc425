"""Who calls, as the edge has found out; and what such a caller may do."""

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """engine: opens sessions. operator: administers. reader: looks, changes nothing. node: asks for blocks, as other
    nodes do. user: asks an engine for completions."""

    ENGINE = "engine"
    OPERATOR = "operator"
    READER = "reader"
    NODE = "node"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Identity:
    """name: in logs; tenant: whose blocks it may use, "" = the default tenant."""

    name: str
    tenant: str
    roles: frozenset[Role]


LOCAL = Identity("local", "", frozenset(Role))
"""Who comes by the Unix socket, which only this user may open; or by loopback while nobody is asked who they are."""
