"""Tenants from a sidecar's configuration."""

from collections.abc import Callable

from ..config import ServeConfig
from ..errors import ConfigError
from ..security.identities import load_identities
from .claims import Claims
from .file import load_tenants
from .tenants import Tenants


def open_tenants(config: ServeConfig, dram_bytes: int) -> Tenants | None:
    """None without --tenants. ConfigError, also for an identity of a tenant that there is not."""
    if config.tenants is None:
        _refuse_strangers(config, frozenset())
        return None
    claims = Claims([each.path for each in config.nvme])
    nvme_bytes = sum(each.capacity_bytes for each in config.nvme)
    tenants = load_tenants(config.tenants, dram_bytes=dram_bytes, nvme_bytes=nvme_bytes, claims=claims)
    _refuse_strangers(config, frozenset(each.name for each in tenants))
    return tenants


def _refuse_strangers(config: ServeConfig, names: frozenset[str]) -> None:
    if config.identities is None:
        return
    for identity, tenant in load_identities(config.identities).tenants.items():
        if tenant and tenant not in names:
            raise ConfigError(f"--identities: {identity} is of tenant {tenant!r}, which --tenants does not name")


def tenant_of(tenants: Tenants | None) -> Callable[[bytes], str | None]:
    """Whose a namespace is, for tiers; without tenants all are the default one's."""
    return tenants.tenant_of if tenants is not None else lambda _: ""
