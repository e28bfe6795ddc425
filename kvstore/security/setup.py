"""What a node's security options come to."""

import contextlib
from collections.abc import Generator
from dataclasses import dataclass

from ..config import ServeConfig
from ..errors import ConfigError
from .audit import AuditLog
from .credentials import CredentialFiles, Credentials, OptionNames
from .guard import Guard
from .identities import watch_identities
from .tls import Tls, TlsFiles


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
    identities = watch_identities(config.identities) if config.identities is not None else None
    if identities is not None and config.tls_ca is None and identities.get().only_certificates:
        name = identities.get().only_certificates[0]
        raise ConfigError(f"--identities: {name} has only a certificate, and without --tls-ca nobody is asked for one")
    tls = None
    if config.tls_cert is not None and config.tls_key is not None:
        tls = Tls(TlsFiles(config.tls_cert, config.tls_key, config.tls_ca))
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
