"""Bringer: gets a prompt's blocks into DRAM for a request, from the tier below and from other nodes."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from ..radix import Match, block_keys
from .catalog import NO_MATCH
from .depot import Depot
from .elsewhere import MORE, NAME, REMOTE, Elsewhere, FromElsewhere, Measured
from .flight import Flight, Stage
from .following import Following
from .placement.cost import IoCost
from .promoter import Promoter
from .remote.asking import LastResort
from .replicas import Replicas
from .residents import Residents
from .source import BEYOND, FromDepot
from .stats import Counters
from .tenants.sharing import Sharing
from .tiers import Tier

WORTH_ASKING_S = 0.005  # of computing what is missing; below it, asking other nodes costs as much
ASK_SHARE, MAX_ASK_S = 0.25, 0.1  # of the deadline that asking may take
MAX_AHEAD = 8  # prefetches that ask at once
NO_END = 1 << 62  # an ordinal behind all


@dataclass(frozen=True, slots=True)
class Came:
    """How it went. resident: blocks that were in DRAM when asked for; lower, peer: up to which ordinal what came beyond
    is the lower tier's, and other nodes'; why: what kept the others from coming, if anything did."""

    resident: int
    lower: int
    why: str
    waited_s: float = 0.0
    peer: int = NO_END


class Bringer:
    """elsewhere: the other nodes, None while there are none. remote: asked after them. exclusive: what is brought up
    from below leaves there."""

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
        self.following = Following()
        self.remote: LastResort | None = None
        self.replicas: Replicas | None = None  # set with it
        self.sharing: Sharing | None = None
        self._ahead = asyncio.Semaphore(MAX_AHEAD)
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
        """Whether to ask other nodes, or the remote store, for what is behind the first `have` blocks."""
        missing = len(tokens) // space.block_token_bytes - have
        compute_s = space.cost.compute_s(have * space.block_tokens, missing * space.block_tokens)
        if missing <= 0:
            return False
        if self.elsewhere is not None and self.elsewhere.available and not 0 < compute_s <= WORTH_ASKING_S:
            return True
        return self.remote is not None and self.remote.asks(compute_s)

    @asynccontextmanager
    async def bring(
        self,
        space: Residents,
        tokens: bytes,
        *,
        skip: int,
        deadline_s: float,
        ask: bool = True,
        claim: tuple[int, int] | None = None,
    ) -> AsyncGenerator[Came]:
        """Bring what is worth it, and keep what came while the body runs. ask: other nodes, too. claim: session and
        ticket of a request that computes what nobody has or computes, and may wait for others who do."""
        loop = asyncio.get_running_loop()
        began, flights, copies = loop.time(), list[Flight](), list[Flight]()
        end = began + deadline_s
        try:
            copies = await self._from_head(space, tokens, skip, deadline_s)
            match = space.index.match(tokens)
            short = await self._from_below(space, tokens, match, skip, flights)
            lower = flights[-1].first + len(flights[-1].keys) if flights else len(match)
            if ask and not short and self.asks(space, tokens, max(lower, skip)):
                short = await self._from_afar(space, tokens, max(lower, skip), flights, end - loop.time(), claim=claim)
            peer, near = flights[-1].first + len(flights[-1].keys) if flights else len(match), len(flights)
            if ask and self.remote is not None and not short:
                short = await self._from_remote(space, tokens, max(peer, skip), flights, end - loop.time())
            if len(flights) == near:  # nothing comes from there: what others have begun to fetch came from nodes
                peer = NO_END
            reason = await self._promoter.wait(flights, max(end - loop.time(), 0.0)) or short
            yield Came(len(match), lower, "" if reason == BEYOND else reason, loop.time() - began, peer)
        finally:
            self._promoter.leave([*copies, *flights])

    def reach(self, space: Residents, tokens: bytes, have: int) -> int:
        """Up to which block a head that is shared can be copied; `have` if nothing beyond that."""
        return self.sharing.reach(space, tokens, have) if self.sharing is not None else have

    async def _from_head(self, space: Residents, tokens: bytes, skip: int, deadline_s: float) -> list[Flight]:
        """Copy what a head has that is shared, wherever it is; the flights, which have ended or are late."""
        have = max(len(space.index.match(tokens)), skip)
        end = self.reach(space, tokens, have)
        if self.sharing is None or end == have:
            return []
        head, shared = tokens[: end * space.block_token_bytes], self.sharing.shared(space)
        shared.held += 1
        try:
            async with self.bring(shared, head, skip=0, deadline_s=deadline_s, ask=False):
                return await self.sharing.bring(space, head, deadline_s)
        finally:
            shared.held -= 1

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

    async def ahead(self, space: Residents, tokens: bytes, first: int, flights: list[Flight]) -> None:
        """Ask other nodes for blocks from `first` on, and begin to fetch them for a request that will come: behind
        what requests wait for. Adds the flights."""
        async with self._ahead:
            if self.asks(space, tokens, first):
                await self._from_afar(space, tokens, first, flights, MAX_ASK_S / ASK_SHARE, urgent=False)
                end = flights[-1].first + len(flights[-1].keys) if flights else first
                await self._from_remote(space, tokens, end, flights, 1.0, urgent=False)

    async def pull(self, space: Residents, tokens: bytes, node: str, tier: Tier, deadline_s: float) -> str:
        """Fetch from that node what no tier here has of a prompt, whether it pays or not, behind what requests wait
        for; "" or why it is not all."""
        have = max(len(space.index.match(tokens)), len(self.below(space, tokens)))
        above = self._key_above(space, tokens, have)
        if above is None:
            return "evicted"
        rest = tokens[have * space.block_token_bytes :]
        keys = block_keys(above, rest, space.block_tokens, hash_name=space.namespace.hash_name)
        source, flights = self._peer(tier, node, have, keys, above), list[Flight]()
        try:
            short = self._fetch(space, tokens, source, flights, urgent=False)
            reason = await self._promoter.wait(flights, deadline_s)
            return ("" if reason == BEYOND else reason) or short
        finally:
            self._promoter.leave(flights)

    async def _from_afar(
        self,
        space: Residents,
        tokens: bytes,
        first: int,
        flights: list[Flight],
        left_s: float,
        *,
        claim: tuple[int, int] | None = None,
        urgent: bool = True,
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
        for holder in await self.following.find(elsewhere, space, tokens, keys, first, claim, ask_s):
            tier = elsewhere.tier(holder.node)
            if tier is None or holder.blocks <= first:
                continue
            if not self._worth(space, NAME, first, holder.blocks, holder.blocks - first):
                return "slower_to_load"
            # A few more than the node is known for, unless the remote store may have those and others behind them.
            rest = first + len(keys) - holder.blocks
            more = 0 if rest > MORE and self.remote is not None and self.remote.asks(0.0) else MORE
            wanted = keys[: holder.blocks + more - first]
            source = self._peer(tier, holder.node, first, wanted, above)
            return self._fetch(space, tokens, source, flights, urgent=urgent)
        return ""

    async def _from_remote(
        self, space: Residents, tokens: bytes, first: int, flights: list[Flight], left_s: float, *, urgent: bool = True
    ) -> str:
        """As _from_afar, of the store of last resort."""
        behind = flights[-1] if flights else None
        joined = behind is not None and behind.first + len(behind.keys) == first
        above = behind.keys[-1] if behind is not None and joined else self._key_above(space, tokens, first)
        missing = (len(tokens) // space.block_token_bytes - first) * space.block_tokens
        compute_s = space.cost.compute_s(first * space.block_tokens, missing)
        if self.remote is None or above is None or missing <= 0 or not self.remote.asks(compute_s):
            return ""
        own, hash_name = tokens[first * space.block_token_bytes :], space.namespace.hash_name
        keys = block_keys(above, own, space.block_tokens, hash_name=hash_name)
        end = await self.remote.find(space, keys, first, left_s)
        if end <= first:
            return ""
        if not self._worth(space, REMOTE, first, end, end - first):
            return "slower_to_load"
        return self._fetch(
            space, tokens, self.remote.source(space, first, keys[: end - first], above), flights, urgent=urgent
        )

    def _peer(self, tier: Tier, node: str, first: int, keys: list[bytes], above: bytes) -> FromElsewhere:
        origin = self.replicas.tracing(node) if self.replicas is not None else None
        measured = Measured(tier, self._io, self._counters, self._clock)
        return FromElsewhere(measured, first, keys, above, origin=origin)

    def _fetch(
        self, space: Residents, tokens: bytes, source: FromElsewhere, flights: list[Flight], *, urgent: bool = True
    ) -> str:
        first = source.first
        match = space.index.match(tokens)
        behind = flights[-1] if flights and flights[-1].stage is not Stage.ENDED else None
        start = first if behind is not None else len(match)
        if not first <= start < source.end:  # what should have come above did not, or all is here by now
            return ""
        begun, short = self._promoter.begin(space, tokens, match, source, urgent=urgent, behind=behind, first=start)
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
