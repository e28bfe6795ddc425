"""Key rings for tests: keys by name, tenants by namespace."""

import hashlib

from kvterrace.kvstore.security.keyring import KeyRing, make

TENANTS = {b"n" * 32: "", b"a" * 32: "alice", b"b" * 32: "bob", b"c" * 32: "carol"}
ALICE, BOB, CAROL = b"a" * 32, b"b" * 32, b"c" * 32


def secret(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def ring(**keys: str | list[str]) -> KeyRing:
    """ring(alice=["new", "old"], bob="clear"): keys by their names."""
    texts = {
        tenant: ["clear"]
        if names == "clear"
        else [secret(name) for name in ([names] if isinstance(names, str) else names)]
        for tenant, names in keys.items()
    }
    return make(texts, "test")


def tenant_of(fingerprint: bytes) -> str | None:
    return TENANTS.get(fingerprint)
