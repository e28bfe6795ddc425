"""Finder: how much of a prompt the store of last resort has. An Elsewhere whose only node is that store.

Whoever has a block has those above it (heads are written first and leave last), so a few questions side by side, and
again between the deepest that is there and the first that is not, find it out: three or four rounds for 8,192 blocks.
Where that is not quite true, the read itself finds the gap.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ..elsewhere import REMOTE, Holder
from ..tiers import Tier
from ..tiers.remote import RemoteTier, Trouble

ABSENT_S = 2.0  # that what was not there is not asked for again
REMEMBERED = 4096  # prompts
SMOOTHING = 0.2  # weight of the newest question in what one takes
FADING = 0.02


class Finder:
    """See the module. clock: of what is remembered."""

    def __init__(self, tier: RemoteTier, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._tier = tier
        self._clock = clock
        self._absent: OrderedDict[bytes, float] = OrderedDict()  # first key -> until when it is believed
        self.ask_s = 0.0
        """What a question takes, lately; 0 = nobody has asked yet."""

    @property
    def available(self) -> bool:
        return self._tier.ready

    def tier(self, node: str) -> Tier | None:
        return self._tier if node == REMOTE else None

    def fade(self) -> None:
        """It was not asked, having been slow: that is believed a little less, so that it is tried again sometime."""
        self.ask_s *= 1.0 - FADING

    async def find(self, fingerprint: bytes, keys: Sequence[bytes], first: int, *, deadline_s: float) -> list[Holder]:
        """See Elsewhere. What is known when the deadline comes is answered then."""
        lookups = self._tier.counts.lookups
        if not keys or deadline_s <= 0:
            return []
        if self._absent.get(keys[0], 0.0) > self._clock():
            lookups["remembered"] += 1
            return []
        loop = asyncio.get_running_loop()
        began = loop.time()
        known, whole = await self._search(fingerprint, keys, first, began + deadline_s)
        took_s = loop.time() - began
        self._tier.counts.lookup_s += took_s
        self.ask_s += (took_s - self.ask_s) * (SMOOTHING if self.ask_s else 1.0)
        if not known and whole:
            self._remember(keys[0])
        lookups["found" if known else "nobody" if whole else "failed"] += 1
        return [Holder(REMOTE, first + known)] if known else []

    async def _search(self, fingerprint: bytes, keys: Sequence[bytes], first: int, by: float) -> tuple[int, bool]:
        """(leading blocks that are there, whether that is all there is to know)."""
        loop = asyncio.get_running_loop()
        known, limit = 0, len(keys)  # that many are there; not more than so many
        while known < limit:
            counts = _probes(known, limit, self._tier.width)
            asked, ordinals = [keys[count - 1] for count in counts], [first + count - 1 for count in counts]
            try:
                there = await self._tier.has(fingerprint, asked, ordinals, deadline_s=by - loop.time())
            except Trouble:
                return known, False
            for count, yes in zip(counts, there, strict=True):
                if not yes:
                    limit = count - 1
                    break
                known = count
        return known, True

    def _remember(self, key: bytes) -> None:
        self._absent[key] = self._clock() + ABSENT_S
        self._absent.move_to_end(key)
        if len(self._absent) > REMEMBERED:
            self._absent.popitem(last=False)


def _probes(known: int, limit: int, width: int) -> list[int]:
    """Counts of blocks to ask for, ascending, above `known` and up to `limit`: the next one, the last one, and what is
    evenly between."""
    span = limit - known
    steps = max(min(width, span) - 1, 1)
    return sorted({known + 1, *(known + -(-span * step // steps) for step in range(1, steps + 1))})
