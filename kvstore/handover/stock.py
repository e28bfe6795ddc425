"""Stock: what a store has to hand over, and how it takes over what another node has. On the store's loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ...proto import Namespace
from ..bringing import Bringer
from ..depot import Depot
from ..errors import SessionRefused
from ..replicas import Replicas, Warmth
from ..residents import Residents
from ..shared import Backlog
from ..slabs import SlabPool
from ..tiers import Tier
from .paths import Path, hottest


def _counter() -> Counter[str]:
    return Counter()


@dataclass(frozen=True, slots=True)
class Taken:
    """blocks: of the path that are here, from its first token on; fetched: those of them that came now. reason: why it
    is not all, "" = it is: "namespace" (it cannot be here, or is another one), "tenant" (nobody here has that name),
    "draining", "full" (of what is hotter), or why fetching failed."""

    blocks: int
    fetched: int
    reason: str


@dataclass(slots=True)
class StockCounts:
    """Blocks and bytes that came by taking over, and refusals by reason. They only grow."""

    taken_blocks: int = 0
    taken_bytes: int = 0
    refused: Counter[str] = field(default_factory=_counter)


class Stock:
    """spaces: the store's live table of namespaces; make_space: the one of that name for a tenant's namespace, made if
    need be (SessionRefused)."""

    def __init__(
        self,
        spaces: Mapping[bytes, Residents],
        make_space: Callable[[Namespace, str], Residents],
        bringer: Bringer,
        depot: Depot,
        backlog: Backlog,
        pool: SlabPool,
        clock: Callable[[], float],
    ) -> None:
        self._spaces = spaces
        self._make_space = make_space
        self._bringer = bringer
        self._depot = depot
        self._backlog = backlog
        self._pool = pool
        self._clock = clock
        self.replicas = bringer.replicas = Replicas(spaces, clock)
        self.counts = StockCounts()

    @property
    def draining(self) -> bool:
        return self._backlog.draining

    def refuse_when_draining(self) -> None:
        """SessionRefused: nothing new is taken."""
        if self.draining:
            raise SessionRefused("draining", "this node is about to leave and takes no new sessions")

    def drain(self) -> None:
        """Take nothing new from now on: neither sessions nor blocks. What is here is served as before."""
        self._backlog.draining = True

    def hottest(self, max_bytes: int, *, last_only: bool) -> list[Path]:
        """See paths.hottest."""
        return hottest(self._spaces.values(), self._clock(), max_bytes=max_bytes, last_only=last_only)

    def keys(self, path: Path) -> list[bytes]:
        """Of its blocks, from the first token on; none when it is not here any more."""
        space = self._spaces.get(path.fingerprint)
        match = space.index.match(path.tokens) if space is not None else None
        if space is None or match is None or len(match) < path.end:
            return []
        return space.index.keys(match.blocks)

    def free_bytes(self) -> int:
        """What could be taken without anything leaving, whatever the size of a block."""
        free = sum(each.free * each.slot_bytes for each in self._pool.classes())
        return free + self._pool.free_slabs * self._pool.slab_bytes

    def warmth(self) -> Warmth:
        """See Replicas.warmth."""
        return self.replicas.warmth()

    def check(self) -> None:
        """AssertionError unless the marks of replicas agree."""
        self.replicas.check()

    async def take(self, path: Path, node: str, tier: Tier, *, deadline_s: float) -> Taken:
        """Fetch from that node what no tier here has of a path. It must be hotter than what leaves for it."""
        taken = await self._take(path, node, tier, deadline_s)
        self.counts.taken_blocks += taken.fetched
        self.counts.taken_bytes += taken.fetched * path.namespace.layout.slot_bytes
        if taken.reason:
            self.counts.refused[taken.reason] += 1
        return taken

    async def _take(self, path: Path, node: str, tier: Tier, deadline_s: float) -> Taken:
        if self.draining:
            return Taken(0, 0, "draining")
        try:
            space = self._make_space(path.namespace, path.tenant)
        except SessionRefused as error:
            return Taken(0, 0, "tenant" if error.field == "tenant" else "namespace")
        if space.fingerprint != path.fingerprint:
            return Taken(0, 0, "namespace")
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        first = have = self._have(space, path)
        reason = ""
        while have < path.end and not reason:
            if not self._room(space, path.end - have, path.idle_s):
                reason = "full"
                break
            reason = await self._bringer.pull(space, path.tokens, node, tier, max(end - loop.time(), 0.0))
            had, have = have, self._have(space, path)
            if have == had:
                reason = reason or "gone"
            elif reason == "full":
                reason = ""  # of what is under way at once: the next ones follow
        if have and path.retention:
            self._depot.retain(space, path.tokens, path.retention)
        return Taken(have, have - first, "" if have >= path.end else reason)

    def _have(self, space: Residents, path: Path) -> int:
        return max(len(space.index.match(path.tokens)), len(self._bringer.below(space, path.tokens)))

    def _room(self, space: Residents, blocks: int, idle_s: float) -> bool:
        """Whether so many fit without anything leaving that was used later. What leaves is the policy's business."""
        if blocks <= space.size_class.obtainable:
            return True
        spaces = [each for each in self._spaces.values() if each.size_class is space.size_class]
        uses = [use for each in spaces if (use := each.index.coldest()) is not None]
        return bool(uses) and self._clock() - min(uses) > idle_s
