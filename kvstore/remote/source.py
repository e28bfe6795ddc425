"""FromRemote: the store of last resort, as a Source."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ..elsewhere import REMOTE, FromPeer
from ..placement.cost import IoCost
from ..stats import Counters
from ..tiers import Tier


class FromRemote(FromPeer):
    """saw: told of each prompt (packed tokens, ordinal) whose blocks from there on came from the store."""

    name = REMOTE

    def __init__(
        self,
        tier: Tier,
        first: int,
        keys: Sequence[bytes],
        above: bytes,
        io: IoCost,
        counters: Counters,
        clock: Callable[[], float],
        saw: Callable[[bytes, int], None],
    ) -> None:
        super().__init__(tier, first, keys, above, io, counters, clock)
        self._saw = saw

    def landed(self, tokens: bytes, first: int) -> Coroutine[Any, Any, Any] | None:
        async def tell() -> None:
            self._saw(tokens, first)

        return tell()
