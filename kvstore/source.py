"""Source: where flights bring blocks from. Made for one request; shared by its flights."""

from collections.abc import Coroutine, Sequence
from typing import Any, Protocol

from ..radix import Match, Retentions
from .catalog import Catalog
from .depot import Depot
from .residents import ABSENT, WRITTEN
from .tiers import Failed, Got, Hit, Wanted

BEYOND = "beyond"


class Source(Protocol):
    """Blocks of one prompt, up to some ordinal, in one tier. Ordinals are the prompt's."""

    @property
    def name(self) -> str:
        """The tier's."""
        ...

    @property
    def end(self) -> int:
        """Blocks of the prompt that the tier has, or is said to have, from the first one on."""
        ...

    @property
    def written(self) -> int:
        """What the column `below` says of a block that came from here: ABSENT, or WRITTEN if NVMe has it."""
        ...

    @property
    def origin(self) -> int:
        """What Replicas calls, now, the node that has these blocks and keeps them; 0: there is none."""
        ...

    def keys(self, first: int, end: int) -> list[bytes]:
        """Of blocks first .. end-1."""
        ...

    def above(self, ordinal: int) -> bytes:
        """Key of the block above that one; the fingerprint above the first."""
        ...

    def retentions(self, first: int, end: int) -> Retentions | None:
        """What was asked for these blocks, if that is known."""
        ...

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        """As Tier.get."""
        ...

    def why(self, answer: Got) -> str:
        """What such an answer means for the request; BEYOND = the tier was never said to have the block."""
        ...

    def lost(self, ordinal: int, key: bytes, answer: Got) -> Coroutine[Any, Any, Any] | None:
        """This answer came for a block: what is to be done, so that it is not asked for twice."""
        ...

    def landed(self, tokens: bytes, first: int) -> Coroutine[Any, Any, Any] | None:
        """Blocks first.. of these tokens are in DRAM now: what is to be done about the copy here."""
        ...


class FromDepot:
    """The tier below DRAM. below: what it has of the prompt; first: ordinal from which on it may be asked. exclusive:
    what has been brought up leaves it, as far as nothing there hangs below.

    Keys and retentions are taken down at once: the catalog's numbers may mean other blocks later."""

    def __init__(self, depot: Depot, catalog: Catalog, below: Match, first: int, *, exclusive: bool) -> None:
        self._depot = depot
        self._catalog = catalog
        self._blocks = below.blocks[first:]
        self._first = first
        self._keys = catalog.keys(self._blocks)
        self._above = catalog.parent_key(below, first)
        self._retentions = catalog.index.retention(self._blocks)
        self._exclusive = exclusive

    origin = 0

    @property
    def name(self) -> str:
        return self._depot.name

    @property
    def end(self) -> int:
        return self._first + len(self._keys)

    @property
    def written(self) -> int:
        return ABSENT if self._exclusive else WRITTEN

    def keys(self, first: int, end: int) -> list[bytes]:
        return self._keys[first - self._first : end - self._first]

    def above(self, ordinal: int) -> bytes:
        return self._keys[ordinal - self._first - 1] if ordinal > self._first else self._above

    def retentions(self, first: int, end: int) -> Retentions | None:
        return self._retentions.rows(first - self._first, end - self._first)

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        return await self._depot.get(wanted, deadline_s=deadline_s)

    def why(self, answer: Got) -> str:
        return answer.reason if isinstance(answer, Failed) else "evicted"

    def lost(self, ordinal: int, key: bytes, answer: Got) -> Coroutine[Any, Any, Any] | None:
        gone = answer.reason == "corrupt" if isinstance(answer, Failed) else not isinstance(answer, Hit)
        block = int(self._blocks[ordinal - self._first])
        return self._depot.forget(self._catalog, block, key, self.why(answer)) if gone else None

    def landed(self, tokens: bytes, first: int) -> Coroutine[Any, Any, Any] | None:
        return self._depot.forget_tips(self._catalog, tokens, first) if self._exclusive else None
