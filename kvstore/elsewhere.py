"""Elsewhere: what a store knows of other nodes: who has more of a prompt, and a tier for each of them."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ..radix import Retentions
from .placement.cost import IoCost
from .residents import ABSENT
from .source import BEYOND
from .stats import Counters
from .tiers import Failed, Got, Tier, Wanted, hit_bytes

NAME = "peer"
REMOTE = "remote"  # the store of last resort
MORE = 15  # blocks that a holder may have behind those it is known for


@dataclass(frozen=True, slots=True)
class Holder:
    """That node has the first `blocks` blocks of a prompt, and perhaps a few more."""

    node: str
    blocks: int


class Elsewhere(Protocol):
    """The other nodes."""

    @property
    def available(self) -> bool:
        """Whether it makes sense to ask."""
        ...

    async def find(
        self, fingerprint: bytes, keys: Sequence[bytes], first: int, *, deadline_s: float
    ) -> Sequence[Holder]:
        """Who has more than the first `first` blocks of a prompt, whose blocks from there on have these keys; the best
        first. Nobody, by the deadline at the latest, when it cannot be found out."""
        ...

    def tier(self, node: str) -> Tier | None:
        """How to get blocks from that node; None: it is not there any more."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """A tier that is elsewhere. io: learns what getting blocks from there takes, by `name`."""

    tier: Tier
    io: IoCost
    counters: Counters
    clock: Callable[[], float]
    name: str = NAME

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        with self.io.measure(self.name, "read", self.clock) as measured:
            answers = await self.tier.get(wanted, deadline_s=deadline_s)
            measured.size_bytes = hit_bytes(wanted, answers)
        self.counters.read_bytes[self.name] += measured.size_bytes
        return answers


class FromElsewhere:
    """Another node, or the store of last resort, as a Source. keys: of the blocks from `first` on, as far as they may
    be there; above: key of the block before them. origin: see Source. saw: told of each prompt (packed tokens, ordinal)
    whose blocks from there on came from it."""

    written = ABSENT

    def __init__(
        self,
        tier: Measured,
        first: int,
        keys: Sequence[bytes],
        above: bytes,
        *,
        origin: Callable[[], int] | None = None,
        saw: Callable[[bytes, int], None] | None = None,
    ) -> None:
        self.name = tier.name
        self._origin = origin
        self._saw = saw
        self._tier = tier
        self.first = first
        self._keys = list(keys)
        self._above = above

    @property
    def end(self) -> int:
        return self.first + len(self._keys)

    @property
    def origin(self) -> int:
        return self._origin() if self._origin is not None else 0

    def keys(self, first: int, end: int) -> list[bytes]:
        return self._keys[first - self.first : end - self.first]

    def above(self, ordinal: int) -> bytes:
        return self._keys[ordinal - self.first - 1] if ordinal > self.first else self._above

    def retentions(self, first: int, end: int) -> Retentions | None:
        """What the other node was asked is not this one's business."""
        return None

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        return await self._tier.get(wanted, deadline_s=deadline_s)

    def why(self, answer: Got) -> str:
        return answer.reason if isinstance(answer, Failed) else BEYOND

    def lost(self, ordinal: int, key: bytes, answer: Got) -> Coroutine[Any, Any, Any] | None:
        return None

    def landed(self, tokens: bytes, first: int) -> Coroutine[Any, Any, Any] | None:
        return self._tell(self._saw, tokens, first) if self._saw is not None else None

    @staticmethod
    async def _tell(saw: Callable[[bytes, int], None], tokens: bytes, first: int) -> None:
        saw(tokens, first)
