"""What stands against a session, by the identity that its client claims. A tenant learns nothing of another's: only
namespaces of the same salt are compared."""

from collections.abc import Iterable

from ..proto import Namespace
from ..radix import HASH_BYTES
from .errors import SessionRefused

# All of one model's blocks have the same geometry, whatever the adapter or the engine.
_GEOMETRY = ("kv_heads", "layers", "planes", "head_dim")


def refuse_identity(namespace: Namespace, fingerprint: bytes | None) -> None:
    """SessionRefused when the client's namespace, as it came, is none, or not what the client takes it for."""
    if namespace.hash_name not in HASH_BYTES:
        known = ", ".join(sorted(HASH_BYTES))
        raise SessionRefused("hash_name", f"no block hash of that name; there are {known}", theirs=namespace.hash_name)
    ours = namespace.fingerprint()
    if fingerprint and fingerprint != ours:
        raise SessionRefused(
            "fingerprint",
            "the client derives another fingerprint from the same namespace: its version does not fit this store's",
            ours=ours.hex(),
            theirs=fingerprint.hex(),
        )


def refuse_geometry(namespace: Namespace, others: Iterable[Namespace]) -> None:
    """SessionRefused when the same tenant has the same weights here with another geometry."""
    for known in others:
        if (known.weights_digest, known.tenant_salt) != (namespace.weights_digest, namespace.tenant_salt):
            continue
        for name in known.diff(namespace):
            # Pipeline stages hold different ranges of layers, and may hold different numbers of them.
            if name in _GEOMETRY and (name != "layers" or known.first_layer == namespace.first_layer):
                theirs, here = getattr(namespace.layout, name), getattr(known.layout, name)
                raise SessionRefused(
                    name,
                    f"these weights are known here with {name} {here}, not {theirs}",
                    ours=str(here),
                    theirs=str(theirs),
                )
