"""What the NVMe tier takes and tells: its paths, their state, what was found at start."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class NvmePath:
    """A directory on one device, the tier's own.

    capacity_bytes:    cap on the bytes of all files in it, at every moment; three segments at least.
    min_free_bytes:    of its file system, left to others.
    daily_write_bytes: what may be written to it in a day (UTC); 0 = no limit.
    """

    path: Path
    capacity_bytes: int
    min_free_bytes: int = 1 << 30
    daily_write_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """One path.

    state:             "ok", or for people, why it is out of use.
    used_bytes:        on the disk, files of unknown kind included.
    live_bytes:        of records that can be got, headers included.
    written_bytes:     to the device, since the start.
    accepted_bytes:    those of them that were put; the rest are moved records, footers and dead bits.
    read_bytes:        from the device, for get.
    errors:            device calls that failed or took too long.
    corrupt_blocks:    found damaged, and dropped.
    encrypted_blocks:  written encrypted.
    open_failures:     those of the corrupt ones that the key did not open: changed, or never sealed with it.
    key_missing_blocks: dropped at start, since their key is not there any more.
    clear_dropped_blocks: dropped, since they are in clear and should not be.
    budget_left_bytes: of today's write budget; None = there is none.
    direct:            past the page cache.
    foreign_segments:  unreadable, or of a version this program does not know; left alone.
    """

    path: str
    state: str
    capacity_bytes: int
    used_bytes: int
    live_bytes: int
    written_bytes: int
    accepted_bytes: int
    read_bytes: int
    errors: int
    corrupt_blocks: int
    budget_left_bytes: int | None
    direct: bool
    segments: int
    foreign_segments: int
    encrypted_blocks: int = 0
    open_failures: int = 0
    key_missing_blocks: int = 0
    clear_dropped_blocks: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Inventory:
    """Blocks of one kind that can be got, oldest first, one row each.

    keys, parents: uint8 [n, 32], shorter ones padded with zeros. tokens: int32 [n, block_tokens]. priority: uint8.
    ttl_s: float64, 0 = none. pinned: bool. expires_s: float64, wall clock, written plus TTL, inf = never. order:
    uint64, larger is younger.
    """

    fingerprint: bytes
    hash_name: str
    block_tokens: int
    block_bytes: int
    keys: U8
    parents: U8
    tokens: NDArray[np.int32]
    priority: U8
    ttl_s: NDArray[np.float64]
    pinned: NDArray[np.bool_]
    expires_s: NDArray[np.float64]
    order: NDArray[np.uint64]
