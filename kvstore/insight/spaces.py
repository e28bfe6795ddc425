"""Spaces: of each namespace, what a cache without limit and one of another size would have hit; and of all together.

Bounded: the MOST_SPACES namespaces asked for last, each with 0.4 MB of windows and 1.8 MB of curve at most; the store's
own figures are the sum of their windows, and a curve of its own, which is the only namespace's while there is one.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from .facts import SpaceFacts
from .types import SpaceInsight, Window
from .unique import WINDOWS_S, Windows
from .what_if import WhatIf

MOST_SPACES = 32
FACTORS = (0.5, 1.0, 2.0, 4.0)
"""Of a tier's size now, at which there is a point on each curve."""
_WIDE = 8.0  # the curve's end, in sizes of both tiers together
_POINTS = 32
_MIN_HORIZON_BYTES = 1 << 30

Capacities = Callable[[], tuple[int, int]]
"""Bytes of DRAM, and of it and the tier below together."""


class _Space:
    def __init__(self, facts: SpaceFacts) -> None:
        self.facts = facts
        self.windows = Windows(facts.block_tokens)
        self.what_if = WhatIf()


class Spaces:
    """See the module."""

    def __init__(self, capacities: Capacities) -> None:
        self._capacities = capacities
        self._spaces: OrderedDict[bytes, _Space] = OrderedDict()
        self._whole: WhatIf | None = None  # while there was one namespace, its own is the store's

    def add(self, facts: SpaceFacts, now: float, blocks: NDArray[np.uint64], hit_tokens: int) -> None:
        """One prompt of these blocks."""
        space = self._spaces.get(facts.fingerprint)
        if space is None:
            if self._whole is None and self._spaces:
                self._whole = deepcopy(next(iter(self._spaces.values())).what_if)
            space = self._spaces[facts.fingerprint] = _Space(facts)
            if len(self._spaces) > MOST_SPACES:
                self._spaces.popitem(last=False)
        self._spaces.move_to_end(facts.fingerprint)
        space.windows.add(now, blocks, hit_tokens)
        horizon = max(self._capacities()[1] * _WIDE, _MIN_HORIZON_BYTES)
        for what_if in (space.what_if, self._whole):
            if what_if is not None:
                what_if.horizon_bytes = horizon
                what_if.add(now, blocks, facts.slot_bytes)

    def read(self, now: float) -> list[SpaceInsight]:
        """The store's, then each namespace's, the one asked for last first. About 2 ms a namespace."""
        dram, both = self._capacities()
        sizes = _sizes(dram, both)
        spaces = [
            _insight(each.facts, each.windows.read(now), each.what_if, sizes, dram, both)
            for each in reversed(self._spaces.values())
        ]
        whole = self._whole or next((each.what_if for each in self._spaces.values()), WhatIf())
        nobody = SpaceFacts(b"", "", "", 0, 0, "")
        return [_insight(nobody, _sum(spaces), whole, sizes, dram, both), *spaces]


def point_sizes(dram_bytes: int, both_bytes: int) -> dict[tuple[str, float], int]:
    """Capacities by tier and factor of its size: of NVMe, beside DRAM as it is."""
    sizes = {("dram", factor): int(dram_bytes * factor) for factor in FACTORS}
    nvme = both_bytes - dram_bytes
    return sizes | {("nvme", factor): dram_bytes + int(nvme * factor) for factor in FACTORS if nvme}


def _sizes(dram: int, both: int) -> list[int]:
    around = np.geomspace(max(dram, 1) / 64, max(both, 1) * _WIDE, _POINTS)
    named = [int(both * factor) for factor in FACTORS]
    return sorted({*around.astype(np.int64).tolist(), *named, *point_sizes(dram, both).values()})


def _insight(
    facts: SpaceFacts, windows: tuple[Window, ...], what_if: WhatIf, sizes: Sequence[int], dram: int, both: int
) -> SpaceInsight:
    return SpaceInsight(
        fingerprint=facts.fingerprint,
        label=facts.label,
        tenant=facts.tenant,
        windows=windows,
        curve=what_if.curve(sizes) if what_if.references else (),
        sampled_share=what_if.sampled_share,
        references=round(what_if.references),
        dram_bytes=dram,
        nvme_bytes=both,
    )


def _sum(spaces: Sequence[SpaceInsight]) -> tuple[Window, ...]:
    """Namespaces have no block in common."""
    columns = [[each.windows[level] for each in spaces] for level in range(len(WINDOWS_S))]
    return tuple(
        Window(
            length,
            tokens=sum(each.tokens for each in column),
            repeated_tokens=sum(each.repeated_tokens for each in column),
            hit_tokens=sum(each.hit_tokens for each in column),
        )
        for length, column in zip(WINDOWS_S, columns, strict=True)
    )
