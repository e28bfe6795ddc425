"""Keeping: what an operator has a store drop, or keep longer: all, a tenant's, a namespace's, or what begins with a
prefix. In all tiers of this node; on the store's loop."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..proto import Retention
from ..radix import TOKEN_BYTES, PrefixIndex, block_keys, walk
from .depot import Depot
from .errors import KvterraceError
from .keyed import MAX_FOUND
from .merged import Merged
from .prefixes import Prefixes, SpaceInfo
from .remote import Attached
from .residents import Residents
from .slices import Slices
from .tenants.tenancy import Tenancy

SHOWN_KEY_CHARS = 12


class NotOne(KvterraceError):
    """A key that no block has, or that several have. field: of the request."""

    def __init__(self, field: str, message: str, *, several: bool) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.several = several


@dataclass(frozen=True, slots=True)
class Selection:
    """What is meant; of several of these, what all of them say. fingerprint: one namespace; tenant: all of that
    tenant's; key: the prefix that ends in the block whose key begins so, of which there must be one; tokens: the prefix
    of these packed tokens, of the namespace. Nothing at all: everything."""

    fingerprint: bytes = b""
    tenant: str = ""
    key: bytes = b""
    tokens: bytes = b""

    @property
    def everything(self) -> bool:
        return self == Selection()


@dataclass(frozen=True, slots=True)
class Extent:
    """How much it is: blocks, each once, and bytes in all tiers of this node. fingerprint: of the namespace in which a
    prefix was found."""

    blocks: int = 0
    size_bytes: int = 0
    fingerprint: bytes = b""

    def __add__(self, other: "Extent") -> "Extent":
        fingerprint = self.fingerprint or other.fingerprint
        return Extent(self.blocks + other.blocks, self.size_bytes + other.size_bytes, fingerprint)


class Keeping:
    """spaces: the store's live table. dropped: called when namespaces may have become empty. forget: told of a
    namespace of which something was cleared (None: of all), for those who keep tokens of prompts elsewhere."""

    def __init__(
        self,
        spaces: Mapping[bytes, Residents],
        depot: Depot,
        remote: Attached,
        tenancy: Tenancy,
        dropped: Callable[[], None],
        forget: Callable[[bytes | None], None] = lambda _: None,
    ) -> None:
        self._spaces = spaces
        self._depot = depot
        self._remote = remote
        self.prefixes = Prefixes(spaces, depot, tenant_of=tenancy.tenant_of)
        self._tenancy = tenancy
        self._dropped = dropped
        self._forget = forget

    async def clear(self, which: Selection, *, dry_run: bool = False) -> Extent:
        """Drop it for good: also after a restart. Of tokens: what begins with them. Of a key: the run that has that
        block, and what hangs below it: what no other prompt shares, as a listing shows it. What is being read stays
        until it is released; what is being written will not become visible. dry_run: only say how much it is. NotOne;
        SessionRefused for a tenant that was never here."""
        if not (which.key or which.tokens):
            return await self._clear_spaces(which, dry_run)
        fingerprint, tokens = await self._prefix(which)
        slices, merged = Slices(), self.prefixes.merged(fingerprint)
        run = merged.run_to(tokens) if which.key else None
        if run is not None:
            tokens = tokens[: len(tokens) - (_blocks(merged, tokens) - run.ordinal - 1) * _size(merged)]
        prefixes = await _whole_blocks(merged, tokens, slices)
        extent = Extent(fingerprint=fingerprint)
        for prefix in prefixes:
            extent += await _weigh(merged, prefix, slices)
        if not dry_run:
            await self._clear_prefixes(fingerprint, prefixes, slices)
        return extent

    async def retain(
        self, which: Selection, wish: Retention, fields: Sequence[str], *, below: bool = False, dry_run: bool = False
    ) -> Extent:
        """Set these fields ("priority", "ttl_s", "pinned") of the retention. Of a prefix: its own blocks, and `below`
        also all that begins with it. dry_run, and errors: as clear."""
        values = {} if dry_run else {name: getattr(wish, name) for name in fields}
        if not (which.key or which.tokens):
            spaces = self._selected(which)
            extent = await self._weigh_spaces(spaces)
            for space in spaces:
                self._set(space.fingerprint, _all_blocks, values)
            return extent
        fingerprint, tokens = await self._prefix(which)
        slices, merged = Slices(), self.prefixes.merged(fingerprint)
        prefixes = await _whole_blocks(merged, tokens, slices) if below else []
        counts = [len(side.index.match(tokens)) for side in merged.sides]
        extent = Extent(fingerprint=fingerprint) + (_extent(merged, counts) if counts else Extent())
        for prefix in prefixes:
            extent += await _weigh(merged, prefix, slices, own=prefix != tokens)
        self._set(fingerprint, lambda index: _path_and_below(index, tokens, prefixes), values)
        return extent

    async def _clear_spaces(self, which: Selection, dry_run: bool) -> Extent:
        spaces = self._selected(which)
        extent = await self._weigh_spaces(spaces)
        if dry_run:
            return extent
        chosen = [None] if which.everything else [each.fingerprint for each in spaces]
        for fingerprint in chosen:
            for space in [each for each in self._spaces.values() if fingerprint in {None, each.fingerprint}]:
                space.clear()
            await self._depot.clear(fingerprint)
            await self._remote.clear(fingerprint)
            self._forget(fingerprint)
        self.prefixes.changed()
        self._dropped()
        return extent

    async def _clear_prefixes(self, fingerprint: bytes, prefixes: Sequence[bytes], slices: Slices) -> None:
        names: list[tuple[bytes, int]] = []
        if self._remote.remote is not None:
            names = [name for prefix in prefixes for name in await self._names(fingerprint, prefix, slices)]
        space = self._spaces.get(fingerprint)
        for prefix in prefixes:
            if space is not None:
                space.clear_prefix(prefix)
        await self._depot.clear_prefixes(fingerprint, prefixes)
        await self._remote.remove(fingerprint, names)
        self._forget(fingerprint)
        self.prefixes.changed()
        self._dropped()

    async def _names(self, fingerprint: bytes, prefix: bytes, slices: Slices) -> list[tuple[bytes, int]]:
        """Key and ordinal of the prefix's last block and of all that is known below it, for a store that knows no
        prefixes. What else it has below is cut off with the last block."""
        names: set[tuple[bytes, int]] = set()
        for side in self.prefixes.merged(fingerprint).sides:
            match = side.index.match(prefix)
            if match.tokens * TOKEN_BYTES < len(prefix):
                continue
            for spot in [side.spot(block) for block in walk.subtree(side.index, match.last).tolist()]:
                if side.holds(spot):
                    names.add((side.key(spot.block), side.index.depth(spot.block)))
                await slices.breathe()
        known = self._spaces.get(fingerprint)
        if known is not None:
            keys = block_keys(fingerprint, prefix, known.block_tokens, hash_name=known.namespace.hash_name)
            names.add((keys[-1], len(keys) - 1))
        return sorted(names, key=lambda name: name[1])

    def _set(
        self, fingerprint: bytes, blocks_of: Callable[[PrefixIndex], NDArray[np.int32]], values: Mapping[str, Any]
    ) -> None:
        """In one turn."""
        if not values:
            return
        space, catalog = self._spaces.get(fingerprint), self._depot.of(fingerprint)
        if space is not None:
            space.index.retain(blocks_of(space.index), **values)
        if catalog is not None:
            self._depot.retain_all(catalog, blocks_of(catalog.index), **values)
        self.prefixes.changed()

    def _selected(self, which: Selection) -> list[SpaceInfo]:
        """Namespaces, none of them chosen by what is in it."""
        spaces = [each for each in self.prefixes.spaces() if which.fingerprint in {b"", each.fingerprint}]
        if which.tenant:
            theirs = set(self._tenancy.fingerprints(which.tenant))
            spaces = [each for each in spaces if each.fingerprint in theirs]
        return spaces

    async def _prefix(self, which: Selection) -> tuple[bytes, bytes]:
        """Namespace and packed tokens of the one prefix that is meant. NotOne."""
        if not which.key:
            return which.fingerprint, which.tokens
        found = await self.prefixes.find(which.key, self._selected(which))
        if not found:
            raise NotOne("key", f"no block's key begins with {which.key.hex()}", several=False)
        if len(found) > 1:
            keys = ", ".join(each.key.hex()[: max(SHOWN_KEY_CHARS, 2 * len(which.key) + 4)] for each in found[:4])
            many = "at least " if len(found) >= MAX_FOUND else ""
            raise NotOne(
                "key",
                f"{many}{len(found)} blocks' keys begin with {which.key.hex()}: {keys}; give more of it",
                several=True,
            )
        return found[0].fingerprint, found[0].tokens

    async def _weigh_spaces(self, spaces: Sequence[SpaceInfo]) -> Extent:
        extent, slices = Extent(), Slices()
        for space in spaces:
            size, counts = sum(space.tier_bytes.values()), [each for each in space.tier_blocks.values() if each]
            blocks = sum(counts)
            if len(counts) > 1:
                merged, blocks = self.prefixes.merged(space.fingerprint), 0
                for run in merged.runs(merged.start):
                    blocks += run.blocks
                    await slices.breathe()
            extent += Extent(blocks, size)
        return extent


async def _whole_blocks(merged: Merged, tokens: bytes, slices: Slices) -> list[bytes]:
    """Prefixes of full blocks that stand for all that begins with these tokens: themselves, or, where they end within a
    block, those blocks that begin with the rest."""
    if not merged.sides:
        return []
    size = _size(merged)
    full = tokens[: len(tokens) // size * size]
    if full == tokens:
        return [tokens]
    found: list[bytes] = []
    for head in merged.heads(merged.at(full)):
        if head.startswith(tokens[len(full) :]):
            found.append(full + head[:size])
        await slices.breathe()
    return found


async def _weigh(merged: Merged, prefix: bytes, slices: Slices, *, own: bool = True) -> Extent:
    """What begins with a prefix of full blocks, its last block included if `own`."""
    run = merged.run_to(prefix)
    if run is None:
        return Extent()
    before = _blocks(merged, prefix) - run.ordinal - own
    extent = _extent(merged, [max(count - before, 0) for count in run.counts])
    for below in merged.runs(run.below, run.ordinal + run.blocks):
        extent += _extent(merged, below.counts)
        await slices.breathe()
    return extent


def _size(merged: Merged) -> int:
    """Bytes of a block's tokens."""
    return merged.sides[0].index.block_tokens * TOKEN_BYTES


def _blocks(merged: Merged, tokens: bytes) -> int:
    return len(tokens) // _size(merged)


def _extent(merged: Merged, counts: Sequence[int]) -> Extent:
    """Of so many leading blocks of one run in each tier."""
    return Extent(max(counts), sum(count * side.unit_bytes for count, side in zip(counts, merged.sides, strict=True)))


def _all_blocks(index: PrefixIndex) -> NDArray[np.int32]:
    return np.fromiter(index.iterate(), dtype=np.int32, count=len(index))


def _path_and_below(index: PrefixIndex, tokens: bytes, prefixes: Sequence[bytes]) -> NDArray[np.int32]:
    """Blocks of a prompt, and all that begins with one of these prefixes."""
    parts = [index.match(tokens).blocks]
    for prefix in prefixes:
        match = index.match(prefix)
        if match.tokens * TOKEN_BYTES == len(prefix):
            parts.append(walk.subtree(index, match.last))
    return np.unique(np.concatenate(parts))
