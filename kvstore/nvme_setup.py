"""The NVMe tier from what a user asked for to what a store takes: paths examined, opened, recovered."""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass

from .below import Below
from .config import ServeConfig
from .disks import examine
from .errors import ConfigError
from .placement.admission import ADMISSIONS
from .security.keyring import KeyRing
from .tiers.codec import Codec, Measured, PlanesLz4, RawCodec
from .tiers.nvme import NvmePath, NvmeTier
from .tiers.nvme.cipher import TenantOf

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NvmePlan:
    """What is asked for; the fields as in ServeConfig."""

    paths: tuple[NvmePath, ...]
    admission: str = "all"
    exclusive: bool = False
    codec: str = "none"
    keys: KeyRing | None = None


def nvme_plan(config: ServeConfig) -> NvmePlan:
    """The part of a sidecar's configuration that is about NVMe."""
    paths = tuple(
        NvmePath(each.path, each.capacity_bytes, config.nvme_min_free, config.nvme_daily_writes or 0)
        for each in config.nvme
    )
    keys = KeyRing.load(config.nvme_keys, os.environ) if paths else None
    return NvmePlan(paths, config.nvme_admission, config.nvme_mode == "exclusive", config.nvme_codec, keys)


def open_below(plan: NvmePlan, warn: Callable[[str], None], tenant_of: TenantOf = lambda _: "") -> Below:
    """Open the tier and take stock. ConfigError or the tier's NvmeError: what only the user can mend. tenant_of: the
    tenant of a namespace's fingerprint, None = not known now; whose key a block is encrypted with."""
    for each in plan.paths:
        found = examine(each.path, each.capacity_bytes)
        if found.error:
            raise ConfigError(f"--nvme: {found.error}")
        for warning in found.warnings:
            warn(f"warning: {warning}")
    tiers: list[NvmeTier] = []
    codec = _codec(plan.codec, lambda: tiers[0].bandwidth() if tiers else (0.0, 0.0))
    tier = NvmeTier.open(plan.paths, codec=codec, keys=plan.keys, tenant_of=tenant_of)
    tiers.append(tier)
    inventory = list(tier.inventory())
    log.info("the NVMe tier has %d blocks", sum(len(found.keys) for found in inventory))
    return Below(tier, inventory, ADMISSIONS[plan.admission](), plan.exclusive)


def _codec(name: str, device: Callable[[], tuple[float, float]]) -> Codec:
    return RawCodec() if name == "none" else Measured(PlanesLz4(), device)
