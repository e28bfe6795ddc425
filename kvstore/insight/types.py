"""What insight says, as frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """The last seconds. tokens: in full blocks, asked for; repeated_tokens: of them seen before within the window, as
    estimated: what a cache without limit would have hit; hit_tokens: of them found, in whatever tier."""

    window_s: float
    tokens: int
    repeated_tokens: int
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """hit_share: of the tokens in full blocks asked for, that least-recently-used of this capacity would have hit."""

    capacity_bytes: int
    hit_share: float


@dataclass(frozen=True, slots=True)
class SpaceInsight:
    """Of one namespace; of the whole store where the fingerprint is empty. sampled_share: of the blocks, those that the
    curve is made from; references: of blocks, that it is made from. dram_bytes: of that tier now; nvme_bytes: of both
    tiers together."""

    fingerprint: bytes
    label: str
    tenant: str
    windows: tuple[Window, ...]
    curve: tuple[CurvePoint, ...]
    sampled_share: float
    references: int
    dram_bytes: int
    nvme_bytes: int


@dataclass(frozen=True, slots=True)
class Finding:
    """Prompts that share a head and break off early for no good reason.

    key: of the last block that they share. token: where they break, typically. kind: "timestamp", "id", "number",
    "reordered", "changed"; "unknown" without text. lost_tokens_per_day: the same again behind the break, and computed
    again. ours, cached: packed tokens around the break, of one of them and of what it was compared with: up to 16 that
    both have before it, and up to 32 from it on.
    """

    fingerprint: bytes
    label: str
    tenant: str
    key: bytes
    token: int
    kind: str
    prompts: int
    lost_tokens_per_day: float
    ours: bytes
    cached: bytes
    ours_text: str = ""
    cached_text: str = ""


@dataclass(frozen=True, slots=True)
class TierSample:
    """One tier at the end of an interval; came_bytes and left_bytes: within it."""

    used_bytes: int
    capacity_bytes: int
    came_bytes: int
    left_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One interval of a store's history. time_s: Unix, its end. tokens: of prompts served, by tier, with "hbm" and
    "computed". misses: tokens in full blocks by reason. ttft_hit_s, ttft_miss_s: median of the requests of which at
    least half of the prompt was reused, and of the others; None = there were none. saved_s: seconds of prefill."""

    time_s: float
    seconds: float
    requests: int
    tokens: Mapping[str, int]
    misses: Mapping[str, int]
    ttft_hit_s: float | None
    ttft_miss_s: float | None
    saved_s: float
    tiers: Mapping[str, TierSample]
