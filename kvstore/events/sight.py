"""Sight: which namespaces a caller may be told of: a tenant's identity of its own alone, others of all."""

from collections.abc import Callable

from ..security.identity import Identity

Sees = Callable[[bytes], bool]


def everything(_: bytes) -> bool:
    """For who may see all."""
    return True


class Sight:
    """tenant_of: a namespace's, None = not known."""

    def __init__(self, tenant_of: Callable[[bytes], str | None]) -> None:
        self._tenant_of = tenant_of

    def __call__(self, who: Identity) -> Sees:
        """Whether it may be told of the namespace of that fingerprint. What is not known is nobody's."""
        if not who.tenant:
            return everything
        return lambda fingerprint: self._tenant_of(fingerprint) == who.tenant
