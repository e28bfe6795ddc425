"""The NVMe tier: crash-safe segments of records on one or more paths."""

from .files import Files, OsFiles
from .tier import NvmeTier
from .types import DeviceStats, Inventory, NvmePath

__all__ = ["DeviceStats", "Files", "Inventory", "NvmePath", "NvmeTier", "OsFiles"]
