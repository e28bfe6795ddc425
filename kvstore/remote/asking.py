"""LastResort: the store of last resort as a Bringer asks it, after everybody else."""

from collections.abc import Callable, Sequence
from functools import partial

from ..elsewhere import REMOTE, FromElsewhere, Measured
from ..placement.cost import IoCost
from ..residents import Residents
from ..stats import Counters
from .remote import Remote

WORTH_ASKING_S = 0.005  # of computing what is missing
WORTH_FACTOR = 4.0  # or so many times what a question takes, where that is more
ASK_SHARE, MAX_ASK_S = 0.25, 0.25  # of the deadline that asking may take


class LastResort:
    """saw: told of each prompt (packed tokens, ordinal) whose blocks from there on came from the store."""

    def __init__(
        self,
        remote: Remote,
        io: IoCost,
        counters: Counters,
        clock: Callable[[], float],
        saw: Callable[[Residents, bytes, int], None],
    ) -> None:
        self._remote = remote
        self._tier = Measured(remote.tier, io, counters, clock, REMOTE)
        self._saw = saw

    def asks(self, compute_s: float) -> bool:
        """Whether to ask for what would take so long to compute; 0 = not known."""
        finder = self._remote.finder
        if not finder.available or 0 < compute_s <= WORTH_ASKING_S:
            return False
        worth = not compute_s or compute_s > WORTH_FACTOR * finder.ask_s
        if not worth:
            finder.fade()
        return worth

    async def find(self, space: Residents, keys: Sequence[bytes], first: int, left_s: float) -> int:
        """How many leading blocks of a prompt are there, at least; `first` of them are known not to matter."""
        ask_s = min(left_s * ASK_SHARE, MAX_ASK_S)
        found = await self._remote.finder.find(space.fingerprint, keys, first, deadline_s=ask_s)
        return found[0].blocks if found else 0

    def source(self, space: Residents, first: int, keys: Sequence[bytes], above: bytes) -> FromElsewhere:
        """Of the blocks from `first` on, which have these keys."""
        return FromElsewhere(self._tier, first, keys, above, saw=partial(self._saw, space))
