"""Prefixes: what is stored, as runs of blocks of the radix tree that have no branch between them, found and listed by
the keys of their last blocks. Reads the indexes of DRAM and of the lower tier; changes nothing.

Works in slices of a millisecond on the store's loop. What was looked at is kept for twenty times as long as looking
took, so that whoever asks all the time takes a twentieth of the loop.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..proto import DEFAULT_RETENTION, Retention
from ..radix import TOKEN_BYTES
from .depot import Depot
from .events.sight import Sees, everything
from .keyed import MAX_FOUND, Found, keyed_blocks
from .merged import Merged, Run
from .residents import Residents
from .retention import retention_of
from .slices import Slices
from .survey import Seen, Survey, best

DEFAULT_LIMIT = 50
MAX_RUNS = 200_000  # looked at at once: about 26 MB while it is kept
KEPT_FACTOR, MAX_KEPT_S = 20, 30.0


@dataclass(frozen=True, slots=True)
class PrefixInfo:
    """One run, in whatever tier.

    key: of its last block: names the prefix that ends there. parent: of the block above its first, b"" = there is none.
    first_block: ordinal of its first. prefix_tokens: from the prompt's start to its end. hits, age_s: of its first
    block; idle_s: since one of its blocks was used. retention: of its last block. leases: held on it now. below_blocks:
    in all that hangs below it. tokens: packed, the first ones of the run, as many as were asked for.
    """

    fingerprint: bytes
    label: str
    tenant: str
    key: bytes
    parent: bytes
    first_block: int
    blocks: int
    prefix_tokens: int
    tier_blocks: Mapping[str, int]
    tier_bytes: Mapping[str, int]
    hits: int
    age_s: float
    idle_s: float
    retention: Retention = DEFAULT_RETENTION
    pinned_blocks: int = 0
    leases: int = 0
    children: int = 0
    below_blocks: int = 0
    tokens: bytes = b""


@dataclass(frozen=True, slots=True)
class SpaceInfo:
    """One namespace. tier_blocks, tier_bytes: all that each tier has of it."""

    fingerprint: bytes
    label: str
    tenant: str
    block_tokens: int
    sessions: int
    tier_blocks: Mapping[str, int]
    tier_bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Listing:
    """total: runs that were looked at. partial: there are more than can be looked at at once. spaces: the namespaces
    that were looked in."""

    prefixes: tuple[PrefixInfo, ...]
    total: int
    partial: bool
    spaces: tuple[SpaceInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class _Kept:
    survey: Survey
    until: float


class Prefixes:
    """spaces: the store's live table of namespaces. tenant_of: a namespace's, None = not known. pace: seconds, of how
    long work takes."""

    def __init__(
        self,
        spaces: Mapping[bytes, Residents],
        depot: Depot,
        *,
        tenant_of: Callable[[bytes], str | None] = lambda _: "",
        pace: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._spaces = spaces
        self._depot = depot
        self._tenant_of = tenant_of
        self._pace = pace
        self._kept: dict[bytes, _Kept] = {}
        self._one_at_a_time = asyncio.Lock()

    async def list(
        self,
        *,
        fingerprint: bytes = b"",
        tenant: str = "",
        key: bytes = b"",
        children: bool = False,
        sort: str = "hits",
        limit: int = DEFAULT_LIMIT,
        tokens: int = 0,
        sees: Sees = everything,
    ) -> Listing:
        """See PrefixesRequest. Yields to the loop as often as needed for others not to wait."""
        spaces, slices = self.within(fingerprint, tenant, sees), Slices(self._pace)
        if key:
            shown = [each async for each in self._by_key(key, spaces, children, tokens, slices)]
            return Listing(tuple(shown[:limit]), len(shown), False, spaces)
        surveys = [await self._survey(each, slices) for each in spaces]
        rows: list[PrefixInfo] = []
        for number, place in best(surveys, sort, limit):
            survey = surveys[number]
            branches, blocks = survey.below(place)
            await slices.breathe()
            info = await _describe(spaces[number], survey.merged, survey.run(place), tokens, slices)
            if info is not None:
                rows.append(replace(info, children=branches, below_blocks=blocks))
        partial = any(each.partial for each in surveys)
        return Listing(tuple(rows), sum(map(len, surveys)), partial, spaces)

    def within(self, fingerprint: bytes, tenant: str, sees: Sees) -> tuple[SpaceInfo, ...]:
        """The namespaces that are meant, as PrefixesRequest says it, and that the caller may be told of."""
        return tuple(
            each
            for each in self.spaces()
            if sees(each.fingerprint) and fingerprint in {b"", each.fingerprint} and tenant in {"", each.tenant}
        )

    def spaces(self) -> Iterator[SpaceInfo]:
        """Every namespace of which something is here, or on which somebody has a session."""
        lower = {each.fingerprint: each for each in self._depot.catalogs()}
        for fingerprint in [*self._spaces, *(each for each in lower if each not in self._spaces)]:
            space, catalog = self._spaces.get(fingerprint), lower.get(fingerprint)
            sides = Merged(space, catalog, self._depot.name).sides
            known = space if space is not None else catalog
            assert known is not None, "a namespace without a tree"
            yield SpaceInfo(
                fingerprint,
                space.namespace.label if space is not None else "",
                self._tenant_of(fingerprint) or "",
                known.block_tokens,
                space.sessions if space is not None else 0,
                {side.tier: len(side.index) for side in sides},
                {side.tier: len(side.index) * side.unit_bytes for side in sides},
            )

    def merged(self, fingerprint: bytes) -> Merged:
        """The trees of a namespace; none where it is not here."""
        return Merged(self._spaces.get(fingerprint), self._depot.of(fingerprint), self._depot.name)

    def changed(self) -> None:
        """Look anew next time: an operator wants to see what a call has done."""
        self._kept.clear()

    async def find(self, key: bytes, spaces: Sequence[SpaceInfo] | None = None) -> Sequence[Found]:
        """Blocks whose keys begin so, MAX_FOUND at most. Looks at every block; in DRAM, where nobody has asked for
        their keys yet, it hashes them."""
        slices, found = Slices(self._pace), dict[bytes, Found]()
        for space in tuple(self.spaces()) if spaces is None else spaces:
            for side in self.merged(space.fingerprint).sides:
                async for block in keyed_blocks(side, key, slices):
                    at = Found(space.fingerprint, side.key(block), side.index.tokens_to(block))
                    found.setdefault(at.key, at)
                    if len(found) >= MAX_FOUND:
                        return tuple(found.values())
        return tuple(found.values())

    async def _by_key(
        self, key: bytes, spaces: Sequence[SpaceInfo], children: bool, tokens: int, slices: Slices
    ) -> AsyncGenerator[PrefixInfo]:
        """The runs that have such a block, or the runs right below them."""
        named = {each.fingerprint: each for each in spaces}
        for found in await self.find(key, spaces):
            merged = self.merged(found.fingerprint)
            run = merged.run_to(found.tokens)
            if run is None:
                continue
            for each in merged.children(run.below, run.ordinal + run.blocks) if children else [run]:
                info = await _describe(named[found.fingerprint], merged, each, tokens, slices)
                if info is not None:
                    runs, blocks = await _weigh_below(merged, each, slices)
                    yield replace(info, children=runs, below_blocks=blocks)

    async def _survey(self, space: SpaceInfo, slices: Slices) -> Survey:
        async with self._one_at_a_time:
            kept = self._kept.get(space.fingerprint)
            if kept is not None and self._pace() < kept.until:
                return kept.survey
            began = self._pace()
            survey = await Survey(self.merged(space.fingerprint), space.block_tokens).take(slices, MAX_RUNS)
            keep_s = min((self._pace() - began) * KEPT_FACTOR, MAX_KEPT_S)
            kept = self._kept[space.fingerprint] = _Kept(survey, self._pace() + keep_s)
            asyncio.get_running_loop().call_later(keep_s, self._forget, space.fingerprint, kept)
            return survey

    def _forget(self, fingerprint: bytes, kept: _Kept) -> None:
        if self._kept.get(fingerprint) is kept:
            del self._kept[fingerprint]


async def _describe(
    space: SpaceInfo, merged: Merged, run: Run | Seen, tokens: int, slices: Slices
) -> PrefixInfo | None:
    """All about a run, children and what hangs below left out; None when it has left meanwhile."""
    last = run.counts.index(max(run.counts))
    side, end = merged.sides[last], run.ends[last]
    try:
        if side.holds(end):
            for _ in side.warm(end.block):
                await slices.breathe()
    except KeyError:
        return None
    return _facts(space, merged, run, last, tokens) if side.holds(end) else None


def _facts(space: SpaceInfo, merged: Merged, run: Run | Seen, last: int, tokens: int) -> PrefixInfo:
    """In one turn; the blocks of tier `last` are all there."""
    side, end, count = merged.sides[last], run.ends[last], max(run.counts)
    hits, age_s, idle_s, leases, pinned = 0, 0.0, math.inf, 0, np.zeros(count, dtype=np.bool_)
    blocks: dict[str, int] = {}
    for each, spot in zip(merged.sides, run.ends, strict=True):
        if not each.holds(spot):
            continue
        index, path = each.index, each.index.path(spot.block)[run.ordinal :]
        first, now = int(path[0]), each.index.now()
        hits = max(hits, int(index.col("hits")[first]))
        age_s = max(age_s, now - float(index.col("inserted_at")[first]))
        idle_s = min(idle_s, now - float(index.col("last_use")[path].max()))
        leases += int(index.col("leases")[path].sum()) if each.catalog is None else 0
        pinned[: len(path)] |= index.retention(path).pinned
        blocks[each.tier] = len(path)
    start = run.ordinal * space.block_tokens * TOKEN_BYTES
    above = side.index.path(end.block)[run.ordinal - 1 : run.ordinal]
    return PrefixInfo(
        space.fingerprint,
        space.label,
        space.tenant,
        side.key(end.block),
        side.keys(above)[0] if run.ordinal else b"",
        run.ordinal,
        count,
        (run.ordinal + count) * space.block_tokens,
        blocks,
        {each.tier: blocks[each.tier] * each.unit_bytes for each in merged.sides if each.tier in blocks},
        hits,
        age_s,
        idle_s,
        retention_of(side.index, np.array([end.block], dtype=np.int32))[0],
        int(pinned.sum()),
        leases,
        tokens=side.index.tokens_to(end.block)[start : start + tokens * TOKEN_BYTES] if tokens else b"",
    )


async def _weigh_below(merged: Merged, run: Run, slices: Slices) -> tuple[int, int]:
    """Runs right below this one, and blocks in all that hangs below it."""
    runs = blocks = 0
    for each in merged.runs(run.below, run.ordinal + run.blocks):
        runs += each.parent < 0
        blocks += each.blocks
        await slices.breathe()
    return runs, blocks
