"""Identities: who may call, from one TOML file. Tokens are in it as SHA-256 only.

[[identity]]
name = "engine-7"
tenant = "acme"                 # "" or absent: the default tenant
roles = ["engine"]
token_sha256 = "9f86d0..."      # and/or:
certificate = "engine-7.acme"   # common name, or DNS or URI name, of a client certificate
"""

import hashlib
import hmac
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..errors import ConfigError
from ..options import NAME
from .files import Watched, read_file
from .identity import Identity, Role

MAX_IDENTITIES = 10_000
MAX_TOKEN_CHARS = 512
_KEYS = {"name", "tenant", "roles", "token_sha256", "certificate"}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ROLES = ", ".join(Role)


@dataclass(frozen=True, slots=True)
class Entry:
    """digest: SHA-256 of its token, certificate: a name in its certificate; None = it has none."""

    identity: Identity
    digest: bytes | None
    certificate: str | None


class Identities:
    """All that are known. tenants: of each, by its name."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._by_digest = [(each.digest, each.identity) for each in entries if each.digest is not None]
        self._by_certificate = {each.certificate: each.identity for each in entries if each.certificate is not None}
        self.tenants = {each.identity.name: each.identity.tenant for each in entries}
        self.only_certificates = [each.identity.name for each in entries if each.digest is None]

    def by_token(self, token: str) -> Identity | None:
        """Whose token it is. Takes the same time for any token that is nobody's."""
        digest = hashlib.sha256(token.encode()).digest()
        found = None
        for known, identity in self._by_digest:
            if hmac.compare_digest(known, digest):
                found = identity
        return found

    def by_certificate(self, names: Iterable[str]) -> Identity | None:
        """Who has one of these names of a certificate that was verified; the first that is known."""
        return next((self._by_certificate[name] for name in names if name in self._by_certificate), None)


def watch_identities(path: Path, option: str = "--identities") -> Watched[Identities]:
    """Of that file, which `option` names, as it is now. ConfigError."""
    return Watched([path], lambda: load_identities(path, option))


def known_callers(path: Path | None, ca: Path | None, option: str = "--identities") -> Watched[Identities] | None:
    """Those of a listener's file; None = it has none. ca: of the certificates it asks for. ConfigError, also when an
    identity could never be shown."""
    if path is None:
        return None
    watched = watch_identities(path, option)
    if ca is None and watched.get().only_certificates:
        name = watched.get().only_certificates[0]
        raise ConfigError(f"{option}: {name} has only a certificate, and without --tls-ca nobody is asked for one")
    return watched


def load_identities(path: Path, option: str = "--identities") -> Identities:
    """ConfigError names the file, the entry and what is wrong with it."""
    try:
        loaded = tomllib.loads(read_file(path, option).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{option}: {path} is not TOML: {error}") from None
    rows = loaded.pop("identity", None)
    if loaded:
        raise ConfigError(f"{option}: {path}: unknown key {min(loaded)!r}; there are only [[identity]] tables")
    if not isinstance(rows, list) or not rows:
        raise ConfigError(f"{option}: {path} has no [[identity]] table")
    tables = cast("list[object]", rows)
    if len(tables) > MAX_IDENTITIES:
        raise ConfigError(f"{option}: {path} has more than {MAX_IDENTITIES} identities")
    entries: list[Entry] = []
    for number, table in enumerate(tables, 1):
        try:
            entries.append(_entry(table))
        except ValueError as error:
            raise ConfigError(f"{option}: {path}: identity {number}: {error}") from None
    _refuse_twice(f"{option}: {path}", "name", [each.identity.name for each in entries])
    _refuse_twice(
        f"{option}: {path}", "certificate", [each.certificate for each in entries if each.certificate is not None]
    )
    _refuse_twice(
        f"{option}: {path}", "token_sha256", [each.digest.hex() for each in entries if each.digest is not None]
    )
    return Identities(entries)


def _entry(table: object) -> Entry:
    if not isinstance(table, dict):
        raise ValueError("is no table")
    row = cast("Mapping[str, Any]", table)
    unknown = sorted(row.keys() - _KEYS)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
    name, tenant = row.get("name"), row.get("tenant", "")
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise ValueError(f"name {name!r} must be 1 to 128 of A-Z a-z 0-9 . _ : -")
    if not isinstance(tenant, str) or (tenant and NAME.fullmatch(tenant) is None):
        raise ValueError(f"tenant {tenant!r} must be 1 to 128 of A-Z a-z 0-9 . _ : -")
    digest, certificate = row.get("token_sha256"), row.get("certificate")
    if digest is None and certificate is None:
        raise ValueError(f"{name} has neither token_sha256 nor certificate")
    if digest is not None and (not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None):
        raise ValueError(f"token_sha256 of {name} must be 64 hexadecimal digits, in lower case")
    if certificate is not None and (not isinstance(certificate, str) or not 0 < len(certificate) <= 256):
        raise ValueError(f"certificate of {name} must be a name of 1 to 256 characters")
    identity = Identity(name, tenant, _roles(name, row.get("roles")))
    return Entry(identity, bytes.fromhex(digest) if digest is not None else None, certificate)


def _roles(name: str, roles: object) -> frozenset[Role]:
    if not isinstance(roles, list) or not roles:
        raise ValueError(f"roles of {name} must be a list of some of {_ROLES}")
    try:
        return frozenset(Role(each) for each in cast("list[Any]", roles))
    except ValueError as error:
        raise ValueError(f"roles of {name}: {error}; there are {_ROLES}") from None


def _refuse_twice(where: str, key: str, values: Sequence[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ConfigError(f"{where}: {key} {value!r} is given twice")
        seen.add(value)
