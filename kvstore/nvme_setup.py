"""The NVMe tier from what a user asked for to what a store takes: paths examined, opened, recovered."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from .config import ServeConfig
from .disks import examine
from .errors import ConfigError
from .placement.admission import ADMISSIONS
from .store import Below
from .tiers.codec import Codec, Measured, PlanesLz4, RawCodec
from .tiers.nvme import NvmePath, NvmeTier

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NvmePlan:
    """What is asked for; the fields as in ServeConfig."""

    paths: tuple[NvmePath, ...]
    admission: str = "all"
    exclusive: bool = False
    codec: str = "none"


def nvme_plan(config: ServeConfig) -> NvmePlan:
    """The part of a sidecar's configuration that is about NVMe."""
    paths = tuple(
        NvmePath(each.path, each.capacity_bytes, config.nvme_min_free, config.nvme_daily_writes or 0)
        for each in config.nvme
    )
    return NvmePlan(paths, config.nvme_admission, config.nvme_mode == "exclusive", config.nvme_codec)


def open_below(plan: NvmePlan, warn: Callable[[str], None]) -> Below:
    """Open the tier and take stock. ConfigError or the tier's NvmeError: what only the user can mend."""
    for each in plan.paths:
        found = examine(each.path, each.capacity_bytes)
        if found.error:
            raise ConfigError(f"--nvme: {found.error}")
        for warning in found.warnings:
            warn(f"warning: {warning}")
    tiers: list[NvmeTier] = []
    codec = _codec(plan.codec, lambda: _speeds(tiers))
    tier = NvmeTier.open(plan.paths, codec=codec)
    tiers.append(tier)
    inventory = list(tier.inventory())
    log.info("the NVMe tier has %d blocks", sum(len(found.keys) for found in inventory))
    return Below(tier, inventory, ADMISSIONS[plan.admission](), plan.exclusive)


def _codec(name: str, device: Callable[[], tuple[float, float]]) -> Codec:
    return RawCodec() if name == "none" else Measured(PlanesLz4(), device)


def _speeds(tiers: list[NvmeTier]) -> tuple[float, float]:
    """Bytes per second that one thread reads from and writes to the devices; 0 = not known."""
    devices = [each for tier in tiers for each in tier.devices()]
    read_s, write_s = sum(each.read_s for each in devices), sum(each.write_s for each in devices)
    read = sum(each.read_bytes for each in devices) / read_s if read_s else 0.0
    return read, sum(each.written_bytes for each in devices) / write_s if write_s else 0.0
