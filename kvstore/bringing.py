"""Bringer: gets a prompt's blocks into DRAM for a request, from the tier below and from other nodes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..radix import Match, block_keys
from .catalog import NO_MATCH
from .depot import Depot
from .elsewhere import MORE, NAME, Elsewhere, FromPeer
from .flight import Flight, Stage
from .placement.cost import IoCost
from .promoter import Promoter
from .residents import Residents
from .source import BEYOND, FromDepot
from .stats import Counters
from .tiers import Tier

WORTH_ASKING_S = 0.005  # of computing what is missing; below it, asking other nodes costs as much
ASK_SHARE, MAX_ASK_S = 0.25, 0.1  # of the deadline that asking may take


@dataclass(frozen=True, slots=True)
class Came:
    """How it went. resident: blocks that were in DRAM when asked for; lower: up to which ordinal what came beyond is
    the lower tier's; why: what kept the others from coming, if anything did."""

    resident: int
    lower: int
    why: str
    waited_s: float = 0.0


class Bringer:
    """elsewhere: the other nodes, None while there are none. exclusive: what is brought up from below leaves there."""

    def __init__(
        self,
        depot: Depot,
        promoter: Promoter,
        counters: Counters,
        io: IoCost,
        clock: Callable[[], float],
        *,
        exclusive: bool,
    ) -> None:
        self.elsewhere: Elsewhere | None = None
        self._depot = depot
        self._promoter = promoter
        self._counters = counters
        self._io = io
        self._clock = clock
        self._exclusive = exclusive

    def below(self, space: Residents, tokens: bytes) -> Match:
        """What the lower tier has of a prompt."""
        catalog = self._depot.of(space.fingerprint)
        return catalog.index.match(tokens) if catalog is not None else NO_MATCH

    def source(self, space: Residents, match: Match, below: Match) -> FromDepot:
        """What the lower tier has beyond DRAM's match; it has some."""
        catalog = self._depot.of(space.fingerprint)
        assert catalog is not None
        return FromDepot(self._depot, catalog, below, len(match), exclusive=self._exclusive)

    def pays(self, space: Residents, match: Match, below: Match, skip: int) -> bool:
        """Whether to load what the lower tier has beyond DRAM and HBM, by the cost model."""
        first = max(len(match), skip)
        if len(below) <= first:
            return False
        return self._worth(space, self._depot.name, first, len(below), len(below) - len(match))

    def asks(self, space: Residents, tokens: bytes, have: int) -> bool:
        """Whether to ask other nodes for what is behind the first `have` blocks."""
        if self.elsewhere is None or not self.elsewhere.available:
            return False
        missing = len(tokens) // space.block_token_bytes - have
        compute_s = space.cost.compute_s(have * space.block_tokens, missing * space.block_tokens)
        return missing > 0 and (compute_s == 0 or compute_s > WORTH_ASKING_S)

    @asynccontextmanager
    async def bring(
        self, space: Residents, tokens: bytes, *, skip: int, deadline_s: float, ask: bool = True
    ) -> AsyncGenerator[Came]:
        """Bring what is worth it, and keep what came while the body runs. ask: other nodes, too."""
        loop = asyncio.get_running_loop()
        began, match = loop.time(), space.index.match(tokens)
        end = began + deadline_s
        flights: list[Flight] = []
        try:
            short = await self._from_below(space, tokens, match, skip, flights)
            lower = flights[-1].first + len(flights[-1].keys) if flights else len(match)
            if ask and not short and self.asks(space, tokens, max(lower, skip)):
                short = await self._from_afar(space, tokens, max(lower, skip), flights, end - loop.time())
            reason = await self._promoter.wait(flights, max(end - loop.time(), 0.0)) or short
            yield Came(len(match), lower, "" if reason == BEYOND else reason, loop.time() - began)
        finally:
            self._promoter.leave(flights)

    async def _from_below(self, space: Residents, tokens: bytes, match: Match, skip: int, flights: list[Flight]) -> str:
        """Begin to load from the lower tier; adds the flights, says "full" or what keeps it from being worth it."""
        below = self.below(space, tokens)
        if len(below) <= max(len(match), skip):
            return ""
        if not self.pays(space, match, below, skip):
            return "slower_to_load"
        source = self.source(space, match, below)
        begun, short = self._promoter.begin(space, tokens, match, source, urgent=True, most=1)
        flights += begun
        await asyncio.sleep(0)  # the device begins, while room is made for what comes behind
        match, below = space.index.match(tokens), self.below(space, tokens)
        if len(below) > len(match) and not any(flight.reason for flight in flights):
            source = self.source(space, match, below)
            begun, short = self._promoter.begin(space, tokens, match, source, urgent=True)
            flights += begun
        return short

    async def _from_afar(
        self, space: Residents, tokens: bytes, first: int, flights: list[Flight], left_s: float
    ) -> str:
        """Ask who has blocks from `first` on, and begin to fetch them; as _from_below."""
        elsewhere, above = self.elsewhere, self._key_above(space, tokens, first)
        if elsewhere is None or above is None:
            return ""
        keys = block_keys(
            above,
            tokens[first * space.block_token_bytes :],
            space.block_tokens,
            hash_name=space.namespace.hash_name,
        )
        ask_s = min(left_s * ASK_SHARE, MAX_ASK_S)
        for holder in await elsewhere.find(space.fingerprint, keys, first, deadline_s=ask_s):
            tier = elsewhere.tier(holder.node)
            if tier is None or holder.blocks <= first:
                continue
            if not self._worth(space, NAME, first, holder.blocks, holder.blocks - first):
                return "slower_to_load"
            wanted = keys[: holder.blocks + MORE - first]
            return self._fetch(space, tokens, first, tier, wanted, above, flights)
        return ""

    def _fetch(
        self,
        space: Residents,
        tokens: bytes,
        first: int,
        tier: Tier,
        keys: list[bytes],
        above: bytes,
        flights: list[Flight],
    ) -> str:
        match = space.index.match(tokens)
        behind = flights[-1] if flights and flights[-1].stage is not Stage.ENDED else None
        start = first if behind is not None else len(match)
        if not first <= start < first + len(keys):  # what should have come above did not, or all is here by now
            return ""
        source = FromPeer(tier, first, keys, above, self._io, self._counters, self._clock)
        begun, short = self._promoter.begin(space, tokens, match, source, urgent=True, behind=behind, first=start)
        flights += begun
        return short

    def _key_above(self, space: Residents, tokens: bytes, first: int) -> bytes | None:
        """Key of the block above `first`, from whichever tier has it."""
        if not first:
            return space.fingerprint
        match = space.index.match(tokens, limit=first)
        if len(match) == first:
            return space.index.key(match.last)
        catalog = self._depot.of(space.fingerprint)
        below = catalog.index.match(tokens, limit=first) if catalog is not None else NO_MATCH
        return catalog.parent_key(below, first) if catalog is not None and len(below) == first else None

    def _worth(self, space: Residents, tier: str, first: int, end: int, blocks: int) -> bool:
        """Whether loading `blocks` is worth it for blocks first .. end-1."""
        tokens, size = space.block_tokens, space.namespace.layout.block_bytes
        return space.cost.worth_loading(tier, first * tokens, (end - first) * tokens, blocks * size)
