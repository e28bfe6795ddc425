"""What each part of the page shows, as plain values: pure functions of a Snapshot. The words and the numbers' formats
are decided here, and tested; `static/` only draws."""

from collections.abc import Mapping
from typing import Any, TypeAlias

View: TypeAlias = Mapping[str, Any]
"""What becomes JSON for the browser."""

TIERS = ("hbm", "dram", "nvme", "peer", "remote", "computed")
"""From nearest to farthest; what is in none of them is computed."""

TIER_NAMES = {
    "hbm": "GPU memory",
    "dram": "DRAM",
    "nvme": "NVMe",
    "peer": "other nodes",
    "remote": "remote store",
    "computed": "computed",
}
