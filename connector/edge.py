"""What an engine's own listener needs to know who calls: the same identities, TLS and guard as at the sidecar's."""

from ..kvstore.errors import ConfigError
from ..kvstore.security.audit import AuditLog
from ..kvstore.security.guard import Caller, Denied, Guard
from ..kvstore.security.http import Certified, caller_of
from ..kvstore.security.identities import watch_identities
from ..kvstore.security.identity import Identity, Role
from ..kvstore.security.tls import Tls, TlsFiles

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
    "TlsFiles",
    "caller_of",
    "watch_identities",
]
