"""What an engine's own listener needs to know who calls: the same identities, TLS and guard as at the sidecar's."""

from ..kvstore.errors import ConfigError
from ..kvstore.security.audit import AuditLog
from ..kvstore.security.guard import Caller, Denied, Guard
from ..kvstore.security.http import Certified, caller_of
from ..kvstore.security.identities import known_callers
from ..kvstore.security.identity import Identity, Role
from ..kvstore.security.tls import Tls

__all__ = [
    "AuditLog",
    "Caller",
    "Certified",
    "ConfigError",
    "Denied",
    "Guard",
    "Identity",
    "Role",
    "Tls",
    "caller_of",
    "known_callers",
]
