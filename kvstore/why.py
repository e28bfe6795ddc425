"""Why: the reason why the first block of a prompt beyond what was found is not here. Changes nothing.

It looks, in this order, at who is writing the block, at the ghosts, at namespaces of the same tenant that have the very
same tokens, and at what is cached behind the last block that was found. A tenant must not learn what others ask for, by
no difference in what is done for an answer either: that another tenant's namespace has the block is looked for apart,
once there is nobody who waits (`truth`), and told to the operator alone. Used on the store's loop; every search is
bounded.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from ..proto import Namespace
from ..radix import TOKEN_BYTES, Branch, Match
from .catalog import Catalog
from .depot import Depot
from .ghosts import Ghosts, traces
from .residents import Residents
from .tenants.tenants import SHARED
from .types import Miss

MAX_NAMESPACES = 32  # others that are asked for a prompt's first block, the newest first
MAX_MATCHED = 4  # of them that are asked for more
MAX_HASHED = 64  # blocks between what is here and the one that is missing, where the engine has them
NEVER, OTHER = "never_seen", "other_namespace"
LOST = frozenset({"evicted", "corrupt"})
LEAST_SHARED = 2  # tokens of a prompt's first block: one alone is what a tokenizer begins every prompt with
_GROUPS = {
    "weights_digest": "weights",
    "adapter_digest": "adapter",
    "kv_heads": "layout",
    "layers": "layout",
    "planes": "layout",
    "head_dim": "layout",
    "first_layer": "layers",
    "hash_name": "hash",
    "tenant_salt": "tenant",
}
"""What people call the fields of a namespace that may differ; the others have their own names."""


Fields: TypeAlias = tuple[str, ...]


class Found(NamedTuple):
    """What is here of a prompt: in DRAM, and in the tier below (what of it is in DRAM, too, included)."""

    fingerprint: bytes
    tokens: bytes
    match: Match
    below: Match


class Why:
    """spaces: the store's live table of namespaces. tenant_of: a namespace's tenant, None = not known."""

    def __init__(
        self,
        spaces: dict[bytes, Residents],
        depot: Depot,
        ghosts: Ghosts,
        tenant_of: Callable[[bytes], str | None],
    ) -> None:
        self._spaces = spaces
        self._depot = depot
        self._ghosts = ghosts
        self._tenant_of = tenant_of

    def missing(self, found: Found, first: int, block_tokens: int, came: str = "") -> Miss | None:
        """Why block `first` of a prompt is not here, or was not brought, as everybody may know it; None: there is no
        such block. came: why it did not come from where it is, "" = it is nowhere. O(1) but for bounded searches: some
        10 to 20 us, 40 where many namespaces are searched."""
        size = block_tokens * TOKEN_BYTES
        if first >= len(found.tokens) // size:
            return None
        token = first * block_tokens
        space, catalog = self._spaces.get(found.fingerprint), self._depot.of(found.fingerprint)
        trace = _trace(found, space, catalog, first, size)
        ghost = self._ghosts.of(trace) if trace is not None else None
        if came and (len(found.below) > first or ghost is None or ghost.reason != came):
            return self._not_brought(found, catalog, first, Miss(came, token))
        if not came and space is not None and trace is not None and space.awaits(trace):
            return Miss("not_committed", token)
        if ghost is not None:
            return Miss(ghost.reason, token, ghost.tier, ghost.gone_s, ghost.kept_s)
        fields = self._elsewhere(space, found.tokens, first, own=True) if space is not None else None
        if fields is not None:
            return Miss(OTHER, token, fields=fields)
        branch = _branch(found, space, catalog, first)
        if branch is not None:
            return Miss("diverged", token + branch.common, cached=branch.known)
        return Miss(NEVER, token)

    def truth(self, fingerprint: bytes, tokens: bytes, said: Miss | None) -> Miss | None:
        """What the operator may know beyond what was said. Not for the time in which somebody waits for an answer."""
        space = self._spaces.get(fingerprint)
        if space is None or said is None or said.reason != NEVER:
            return said
        fields = self._elsewhere(space, tokens, said.token // space.block_tokens, own=False)
        return Miss(OTHER, said.token, fields=fields) if fields is not None else said

    def _not_brought(self, found: Found, catalog: Catalog | None, first: int, miss: Miss) -> Miss:
        """With the tier that has the block, or has just turned out to have lost it."""
        if catalog is None or len(found.below) <= first:
            return miss
        came_s = catalog.index.col("inserted_at").item(found.below.blocks[first])
        kept_s = catalog.index.now() - came_s if miss.reason in LOST else 0.0
        return replace(miss, tier=self._depot.name, kept_s=kept_s)

    def _elsewhere(self, space: Residents, tokens: bytes, first: int, *, own: bool) -> Fields | None:
        """In what the nearest other namespace that has block `first` differs, of the same tenant's (own) or of other
        tenants'; None: there is none."""
        having = chain(self._known(space, tokens, first, own), self._found_below(space, tokens, first, own))
        return min(having, key=len, default=None)

    def _known(self, space: Residents, tokens: bytes, first: int, own: bool) -> Iterator[Fields]:
        """Of namespaces that are open, or have blocks in DRAM. Most lack the first block, which is seen cheaply."""
        head, salt, matched = tokens[: space.block_token_bytes], space.namespace.tenant_salt, 0
        for other in islice(reversed(self._spaces.values()), MAX_NAMESPACES):
            if other is space or other.block_tokens != space.block_tokens or _shared(other):
                continue
            if (other.namespace.tenant_salt == salt) != own or not self._has(other, head, 1):
                continue
            matched += 1
            if self._has(other, tokens, first + 1):
                yield differing(space.namespace, other.namespace)
            if matched == MAX_MATCHED:
                return

    def _found_below(self, space: Residents, tokens: bytes, first: int, own: bool) -> Iterator[Fields]:
        """Of namespaces that the lower tier has from before the start, and nobody has opened since: only their tenant
        is known. So it looks when the weights are others after an upgrade."""
        if not self._depot.present:
            return
        mine = self._tenant_of(space.fingerprint)
        for catalog in islice(self._depot.catalogs(), MAX_NAMESPACES):
            if catalog.fingerprint in self._spaces or catalog.block_tokens != space.block_tokens:
                continue
            if (self._tenant_of(catalog.fingerprint) == mine) == own and catalog.index.knows(tokens, first + 1):
                yield () if own else ("tenant",)

    def _has(self, space: Residents, tokens: bytes, blocks: int) -> bool:
        """In either tier."""
        if space.index.knows(tokens, blocks):
            return True
        catalog = self._depot.of(space.fingerprint)
        return catalog is not None and catalog.index.knows(tokens, blocks)


def _trace(found: Found, space: Residents | None, catalog: Catalog | None, first: int, size: int) -> int | None:
    """What ghosts call block `first`; None when finding out takes too long."""
    here, deep = len(found.match), min(len(found.below), first)
    if space is not None and here >= deep:
        known, seed = here, space.trace(found.match)
    elif catalog is not None:
        known, seed = deep, catalog.trace(Match(found.below.blocks[:deep], 0))
    else:
        return None
    return traces(seed, found.tokens, size, known, first + 1)[-1] if first - known < MAX_HASHED else None


def _branch(found: Found, space: Residents | None, catalog: Catalog | None, first: int) -> Branch | None:
    """What is cached behind the blocks before `first`, in either tier, and is most like it."""
    near = space.index.branch(found.tokens, found.match) if space and len(found.match) == first else None
    deep = catalog.index.branch(found.tokens, found.below) if catalog and len(found.below) == first else None
    best = max((each for each in (near, deep) if each is not None), key=_common, default=None)
    return best if best is not None and (first or best.common >= LEAST_SHARED) else None


def differing(ours: Namespace, theirs: Namespace) -> Fields:
    """What differs between two namespaces, as people call it, each once."""
    return tuple(dict.fromkeys(_GROUPS.get(name, name) for name in ours.diff(theirs)))


def told(miss: Miss | None) -> Miss | None:
    """An operator's truth as a tenant may know it: as it was said before."""
    if miss is None or miss.reason != OTHER or "tenant" not in miss.fields:
        return miss
    return Miss(NEVER, miss.token)


def _shared(space: Residents) -> bool:
    """Whether it has the heads that tenants share: whoever lacks them gets them from there."""
    return space.tenant is not None and space.tenant.name == SHARED


def _common(branch: Branch) -> int:
    return branch.common
