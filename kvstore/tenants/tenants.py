"""Tenants: who may use a store, each with a salt and a share of every tier. Used by the store's thread.

The default tenant "" is everyone who comes without another name: no salt, no quota, no floor. SHARED stands for the
heads that tenants share; no client can have that name. A store without tenants has no Tenants at all.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ...proto import Namespace
from ..errors import ConfigError, SessionRefused
from .claims import Claims
from .heads import Head
from .salt import tenant_salt
from .share import Share

DEFAULT = ""
SHARED = "*"
TIERS = ("dram", "nvme")


@dataclass(frozen=True, slots=True)
class Limits:
    """What an operator grants a tenant, in bytes. A quota of None is none."""

    dram_quota: int | None = None
    dram_floor: int = 0
    nvme_quota: int | None = None
    nvme_floor: int = 0


@dataclass(frozen=True, slots=True)
class TenantStats:
    """One tenant at one moment. tiers: used bytes by tier."""

    name: str
    limits: Limits
    used: dict[str, int]
    hit_tokens: int
    miss_tokens: int
    sessions: int


@dataclass(frozen=True, slots=True)
class Companion:
    """The shared namespace beside a tenant's."""

    fingerprint: bytes
    namespace: Namespace


@dataclass(slots=True, eq=False)
class Tenant:
    """One of them. The two shares are what limits say, and what is used."""

    name: str
    salt: bytes
    limits: Limits
    dram: Share
    nvme: Share
    hit_tokens: int = 0
    miss_tokens: int = 0
    sessions: int = 0

    def stats(self) -> TenantStats:
        """At this moment."""
        used = {"dram": self.dram.used, "nvme": self.nvme.used}
        return TenantStats(self.name, self.limits, used, self.hit_tokens, self.miss_tokens, self.sessions)


class Owned(Protocol):
    """Someone who may belong to a tenant."""

    @property
    def tenant(self) -> Tenant | None: ...


class Tenants:
    """See the module. secret: of the salts. heads: what tenants share. claims: remembers whose a namespace is, over
    restarts. dram_bytes, nvme_bytes: what there is to share out. ConfigError when the limits do not fit together."""

    def __init__(
        self,
        limits: dict[str, Limits],
        secret: bytes,
        *,
        heads: Sequence[Head] = (),
        claims: Claims | None = None,
        dram_bytes: int,
        nvme_bytes: int = 0,
    ) -> None:
        self.heads = tuple(heads)
        self.spaces: Mapping[bytes, Owned] = {}
        """Namespaces in DRAM: the table of the store, which sets it."""
        self._secret = secret
        self._claims = claims or Claims(())
        self._sizes = {"dram": dram_bytes, "nvme": nvme_bytes}
        self._tenants = {name: self._make(name, each) for name, each in limits.items()}
        self._tenants[DEFAULT] = self._make(DEFAULT, Limits())
        self.shared = self._make(SHARED, Limits())
        for name, each in limits.items():
            self._refuse(name, each)

    def __iter__(self) -> Iterator[Tenant]:
        """The default tenant last, and those heads that are shared."""
        yield from self._tenants.values()
        if self.heads:
            yield self.shared

    def named(self, name: str) -> Tenant:
        """SessionRefused when there is none of that name."""
        tenant = self._tenants.get(name)
        if tenant is None:
            raise SessionRefused("tenant", f"this store knows no tenant {name!r}", theirs=name)
        return tenant

    def claim(self, fingerprint: bytes, tenant: Tenant) -> None:
        """This namespace is that tenant's, from now on and after restarts. A file is written when it is new."""
        self._claims.add(fingerprint, tenant.name)

    def owner(self, fingerprint: bytes) -> Tenant | None:
        """Whose a namespace is; None = nobody has opened it since its owner was forgotten, or its owner is gone."""
        name = self._claims.get(fingerprint)
        if name == SHARED:
            return self.shared
        return self._tenants.get(name) if name is not None else None

    def tenant_of(self, fingerprint: bytes) -> str | None:
        """The name of a namespace's tenant, the default one's for shared heads; None = not known at present."""
        space = self.spaces.get(fingerprint)
        name = space.tenant.name if space is not None and space.tenant is not None else self._claims.get(fingerprint)
        return DEFAULT if name == SHARED else name

    def fingerprints(self, name: str) -> list[bytes]:
        """The namespaces of a tenant, here now or not."""
        return self._claims.of(name)

    def keep(self, present: Iterable[bytes]) -> None:
        """At the start: forget whose namespaces were that have no block any more."""
        self._claims.keep(set(present))

    def limit(self, name: str, **wish: int | None) -> Tenant:
        """Set these fields of Limits from now on, until the next start. SessionRefused for a name that is none,
        ConfigError for limits that cannot be; both without a change."""
        tenant = self.named(name)
        if not name:
            raise ConfigError("the default tenant has no quota and no floor")
        limits = replace(tenant.limits, **wish)
        self._refuse(name, limits)
        tenant.limits = limits
        tenant.dram.quota, tenant.dram.floor = limits.dram_quota, limits.dram_floor
        tenant.nvme.quota, tenant.nvme.floor = limits.nvme_quota, limits.nvme_floor
        return tenant

    def _make(self, name: str, limits: Limits) -> Tenant:
        dram = Share(limits.dram_quota, limits.dram_floor)
        nvme = Share(limits.nvme_quota, limits.nvme_floor)
        return Tenant(name, tenant_salt(self._secret, name), limits, dram, nvme)

    def _refuse(self, name: str, limits: Limits) -> None:
        for tier in TIERS:
            quota, floor = getattr(limits, f"{tier}_quota"), getattr(limits, f"{tier}_floor")
            if quota is not None and quota < floor:
                raise ConfigError(f"tenant {name!r}: {tier}_quota of {quota} bytes is below {tier}_floor of {floor}")
            others = sum(getattr(each.limits, f"{tier}_floor") for each in self._tenants.values() if each.name != name)
            if floor and others + floor > self._sizes[tier]:
                raise ConfigError(
                    f"tenant {name!r}: {tier}_floor of {floor} bytes, with the {others} of others, is above the "
                    f"{self._sizes[tier]} bytes that the tier has"
                )


def salted(namespace: Namespace, tenant: Tenant) -> Namespace:
    """The namespace as that tenant's; the default tenant's is as it came."""
    return replace(namespace, tenant_salt=tenant.salt) if tenant.name else namespace
