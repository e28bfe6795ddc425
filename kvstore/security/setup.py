"""What a node's security options come to."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass

from ..config import ServeConfig
from .audit import AuditLog
from .credentials import CredentialFiles, Credentials, OptionNames
from .guard import Guard
from .identities import known_callers
from .tls import Tls


@dataclass(frozen=True, slots=True)
class Security:
    """tls: of this node's listeners, None = none. node: what it shows to other nodes, None = nothing."""

    guard: Guard
    audit: AuditLog
    tls: Tls | None = None
    node: Credentials | None = None


@contextlib.contextmanager
def secured(config: ServeConfig) -> Generator[Security]:
    """For as long as the body runs. ConfigError: a file cannot be read or used."""
    identities = known_callers(config.identities, config.tls_ca)
    tls = Tls.of(config.tls_cert, config.tls_key, config.tls_ca)
    guard = Guard(identities, asks=identities is not None or config.tls_ca is not None)
    audit = AuditLog(config.audit_log)
    try:
        yield Security(guard, audit, tls, _node(config))
    finally:
        audit.close()


def _node(config: ServeConfig) -> Credentials | None:
    if config.tls_cert is None and config.node_token_file is None:
        return None
    ca = config.node_ca or config.tls_ca
    files = CredentialFiles(config.node_token_file, ca, config.tls_cert, config.tls_key)
    names = OptionNames(token="--node-token-file", ca="--node-ca" if config.node_ca else "--tls-ca")
    return Credentials(files, names)
