"""Tenancy: what a store does for its tenants. A store without them has one, too, in which everybody is the default
tenant and nothing is counted."""

from collections.abc import Mapping
from typing import Protocol

from ...proto import Namespace
from ..depot import Depot
from ..errors import ConfigError, SessionRefused
from ..residents import Residents
from .tenants import DEFAULT, SHARED, Companion, Tenant, Tenants, TenantStats, salted


class Clear(Protocol):
    """Clears one namespace in every tier; how many blocks."""

    async def __call__(self, fingerprint: bytes, /) -> int: ...


class Tenancy:
    """tenants: None = there is only the default one. spaces: the store's live table."""

    def __init__(self, tenants: Tenants | None, spaces: Mapping[bytes, Residents], depot: Depot) -> None:
        self.tenants = tenants
        self._spaces = spaces
        self._depot = depot
        if tenants is not None:
            tenants.spaces = spaces

    def named(self, name: str) -> Tenant | None:
        """SessionRefused for a tenant that is not known; None where there are none."""
        if self.tenants is not None:
            return self.tenants.named(name)
        if name != DEFAULT:
            raise SessionRefused("tenant", f"this store knows no tenant {name!r}", theirs=name)
        return None

    def handed(self, name: str) -> Tenant | None:
        """As `named`, of a namespace that another node hands over: shared heads, too."""
        tenants = self.tenants
        return tenants.shared if tenants is not None and tenants.heads and name == SHARED else self.named(name)

    def salted(self, namespace: Namespace, tenant: str) -> Namespace:
        """A namespace as that tenant's; SessionRefused."""
        found = self.named(tenant)
        return salted(namespace, found) if found is not None else namespace

    def companion(self, namespace: Namespace, tenant: Tenant | None) -> Companion | None:
        """The shared namespace beside this one of a tenant's, where heads are shared."""
        tenants = self.tenants
        if tenants is None or not tenants.heads or tenant is None or tenant is tenants.shared:
            return None
        shared = salted(namespace, tenants.shared)
        return Companion(shared.fingerprint(), shared)

    def tenant_of(self, fingerprint: bytes) -> str | None:
        """The name of a namespace's tenant, the default one's for shared heads; None = not known at present."""
        return self.tenants.tenant_of(fingerprint) if self.tenants is not None else DEFAULT

    def fingerprints(self, name: str) -> list[bytes]:
        """All namespaces of a tenant, in whatever tier, those included of one that is no tenant any more.
        SessionRefused when nobody of that name was ever here; for the default tenant, too, which is cleared by
        namespace."""
        remembered = self.tenants.fingerprints(name) if self.tenants is not None else []
        if not remembered:
            self.named(name)
        if name == DEFAULT:
            raise SessionRefused("tenant", "the default tenant's namespaces are cleared one by one, or all")
        here = [key for key, space in self._spaces.items() if space.tenant is not None and space.tenant.name == name]
        return list(dict.fromkeys([*here, *remembered]))

    def limit(self, name: str, **wish: int | None) -> TenantStats:
        """Set these limits of a tenant; see Tenants.limit."""
        if self.tenants is None:
            raise ConfigError("this store has no tenants; start it with --tenants")
        return self.tenants.limit(name, **wish).stats()

    async def clear(self, name: str, clear: Clear) -> int:
        """Clear all of a tenant's namespaces."""
        return sum([await clear(each) for each in self.fingerprints(name)])

    def stats(self) -> tuple[TenantStats, ...]:
        """Of each tenant, where there are any."""
        return tuple(each.stats() for each in self.tenants) if self.tenants is not None else ()

    def check(self) -> None:
        """AssertionError unless what each tenant uses is what its namespaces have. O(namespaces)."""
        for tenant in self.tenants or ():
            spaces = [each for each in self._spaces.values() if each.tenant is tenant]
            assert tenant.dram.used == sum(each.slots * each.unit_bytes for each in spaces), "a tenant's DRAM"
            catalogs = [each for each in self._depot.catalogs() if each.share is tenant.nvme]
            assert tenant.nvme.used == sum(len(each) * each.unit_bytes for each in catalogs), "a tenant's NVMe"
            assert tenant.sessions == sum(each.sessions for each in spaces), "a tenant's sessions"
