"""Computing: what of a namespace is being computed right now, by whom, and whether to wait for it.

A session that was told what is missing of a prompt is about to compute it: its promise is a mark on those blocks, held
under the first of them that is not in DRAM, which moves down as blocks are committed, whoever commits them. Another
request for the same block may wait for what the two prompts have in common. A wait is worth it only while what came
meanwhile keeps up with what computing would have done: a request never loses more than one call of its model and
GRACE_S by waiting, or, where one call computes all of it, what computing takes. A promise without any result costs its
maker the trust for a while. A mark of another node is followed in the same table (following.py). Used by one thread; a
mark is a hint and never identity: what is loaded in the end is what the index says.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from ..radix import Match, PrefixIndex
from .placement.cost import CostModel
from .stats import Counters
from .types import Wait

WORTH_S = 0.05  # of computing; less is neither promised nor waited for
GRACE_S = 0.1  # for the save of what was computed, and for what a measured time is off
CALL_SHARE = 1.5  # of the time of one call of the model: how long no news is good news
MOST_SHARE = 1.25  # of computing all of it
SLOW_SHARE = 1.5  # of computing the rest: from there on the owner's own pace says that computing is quicker
EXPIRY_SHARE, EXPIRY_S = 3.0, 5.0  # a mark that did not move for so long is nobody's
DISTRUST_S, DOUBT_S = 30.0, 5.0  # of who promised and did nothing; of a node of which nothing is known
MAX_MARKS = 4096
MAX_OWNED = 256  # by one session; one more ends its oldest
MAX_TOKEN_BYTES = 64 << 20  # of all marks of a namespace

LOADED, GONE, SLOW, CHEAPER = "loaded", "owner_gone", "too_slow", "cheaper_to_compute"


class Space(Protocol):
    """The namespace: see Residents."""

    @property
    def index(self) -> PrefixIndex: ...
    @property
    def cost(self) -> CostModel: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def block_token_bytes(self) -> int: ...
    def names_of(self, tokens: bytes, match: Match, end: int) -> list[int]: ...


@dataclass(slots=True, eq=False)
class Mark:
    """A promise to compute blocks start .. end-1 of `tokens`.

    owner: the session, or the node's name. ticket: the owner's number for it. name: of the first block that is not in
    DRAM here. at: blocks that its owner has by now. over: no more will come; what there is can still be had.
    followed: somebody asks the owner, another node. first_move, last_move: when it got how far. moved: set, and
    replaced, at each change.
    """

    owner: int | str
    ticket: int
    tokens: bytes
    start: int
    end: int
    name: int
    at: int
    begun_s: float
    first_move: tuple[float, int] | None = None
    last_move: tuple[float, int] | None = None
    over: bool = False
    followed: bool = False
    on_end: Callable[[], None] | None = None
    moved: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def remote(self) -> bool:
        return isinstance(self.owner, str)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request can expect of a mark. common: it shares blocks up to there; have: of them there by now; left_s:
    how long waiting is still worth it; expected_s: until all is there; why: not to wait, when it is not ""."""

    mark: Mark
    common: int
    have: int
    left_s: float = 0.0
    expected_s: float = 0.0
    why: str = ""


class Computing:
    """The marks of one namespace. See the module."""

    def __init__(self, space: Space, counters: Counters, clock: Callable[[], float]) -> None:
        self._space = space
        self._counters = counters
        self._clock = clock
        self._marks: dict[int, Mark] = {}  # by the name of the first block that is not here; oldest first
        self._token_bytes = 0
        self._distrusted: dict[int | str, float] = {}  # until when

    def __len__(self) -> int:
        return len(self._marks)

    # --- promising

    def promise(
        self,
        owner: int | str,
        ticket: int,
        tokens: bytes,
        match: Match,
        *,
        first: int | None = None,
        on_end: Callable[[], None] | None = None,
    ) -> Mark | None:
        """`owner` computes the full blocks of `tokens` behind a match, or from `first` on where those between are on
        their way. None: not worth a mark, not trusted, or somebody else computes that block already. on_end: called
        once, when the mark has ended."""
        space, now = self._space, self._clock()
        start = len(match) if first is None else first
        end = len(tokens) // space.block_token_bytes
        if self.seconds(start, end) < WORTH_S or not self.trusts(owner):
            return None
        name = space.names_of(tokens, match, start + 1)[-1]
        known = self._marks.get(name)
        if known is not None and known.owner == owner and known.ticket == ticket and known.end == end:
            if not known.remote:
                known.begun_s = now
            return known
        if known is not None:
            if known.owner != owner and not known.over and not self._stale(known, now):
                return None
            self.end(known)
        prefix = tokens[: end * space.block_token_bytes]
        mark = Mark(owner, ticket, prefix, start, end, name, start, now, on_end=on_end)
        self._bound(owner, len(prefix))
        self._marks[name] = mark
        self._token_bytes += len(prefix)
        self._counters.inflight_marks += 1
        return mark

    def trusts(self, owner: int | str) -> bool:
        """False for a while after a promise that came to nothing."""
        until = self._distrusted.get(owner, 0.0)
        if until and until <= self._clock():
            del self._distrusted[owner]
        return until <= self._clock()

    def abandon(self, owner: int | str, ticket: int) -> None:
        """What this promise was for is not computed after all."""
        for mark in [each for each in self._marks.values() if each.owner == owner and each.ticket == ticket]:
            self.end(mark)

    def dropped(self, owner: int, tokens: bytes, ordinal: int) -> None:
        """`owner` could not save block `ordinal` of these tokens: nothing from there on will come of its promises."""
        size = self._space.block_token_bytes
        for mark in [each for each in self._marks.values() if each.owner == owner]:
            if mark.end > ordinal and mark.tokens[: (ordinal + 1) * size] == tokens[: (ordinal + 1) * size]:
                mark.end = max(ordinal, mark.at)
                if mark.end == mark.at:
                    self.end(mark)

    def leave(self, owner: int | str) -> None:
        """The session has ended, or the node."""
        for mark in [each for each in self._marks.values() if each.owner == owner]:
            self.end(mark)
        self._distrusted.pop(owner, None)

    def clear(self) -> None:
        for mark in list(self._marks.values()):
            self.end(mark)

    def end(self, mark: Mark) -> None:
        """Take it off; who waits for it goes on."""
        if self._marks.get(mark.name) is mark:
            del self._marks[mark.name]
            self._token_bytes -= len(mark.tokens)
        mark.over = True
        self._wake(mark)
        on_end, mark.on_end = mark.on_end, None
        if on_end is not None:
            on_end()

    # --- progress

    def committed(self, names: Iterable[int]) -> None:
        """Blocks of these names are in DRAM now."""
        for mark in [self._marks[name] for name in names if name in self._marks]:
            self._advance(mark)

    def reached(self, mark: Mark, blocks: int, *, over: bool) -> None:
        """Another node has so many blocks of it now; over: and will have no more."""
        if over and max(blocks, mark.at) == mark.start:
            self.doubt(mark)
            return
        mark.over = mark.over or over
        if blocks > mark.at:
            self._move(mark, min(blocks, mark.end))
        elif over:
            self._wake(mark)

    def doubt(self, mark: Mark) -> None:
        """The other node cannot be asked, or does not compute it: end its mark, and make no other for a moment."""
        self._distrusted[mark.owner] = self._clock() + DOUBT_S
        self.end(mark)

    # --- waiting

    def find(self, tokens: bytes, match: Match, owner: int | str | None = None) -> tuple[Mark, int] | None:
        """Who computes the first block behind a match (not `owner`), and up to which block the prompts are the same."""
        space, have = self._space, len(match)
        end = len(tokens) // space.block_token_bytes
        if not self._marks or have >= end:
            return None
        mark = self._marks.get(space.names_of(tokens, match, have + 1)[-1])
        if mark is None or mark.owner == owner:
            return None
        if self._stale(mark, self._clock()):
            self._break(mark)
            return None
        common = _common(mark.tokens, tokens, have, min(mark.end, end), space.block_token_bytes)
        return (mark, common) if common > have else None

    def outlook(self, tokens: bytes, match: Match, wait: Wait, owner: int | str | None = None) -> Outlook | None:
        """Whether it pays to wait for somebody; None: there is nobody."""
        found = self.find(tokens, match, owner)
        if found is None:
            return None
        mark, common = found
        have, now = min(max(len(match), mark.at), common), self._clock()
        had = min(wait.had if wait.until else have, have)
        rest_s = self.seconds(have, common)
        if have == common:
            return Outlook(mark, common, have, why=LOADED)
        if mark.over:
            return Outlook(mark, common, have, why=GONE)
        if not rest_s or (not wait.until and rest_s < WORTH_S) or not self.trusts(mark.owner):
            return Outlook(mark, common, have, why=CHEAPER)
        call_s = self.seconds(have, min(common, have + self._call_blocks()))
        news_s = max(0.0, call_s - (now - (mark.last_move or (mark.begun_s, 0))[0]))
        gained_s = self.seconds(had, have)
        most_s = min(gained_s + CALL_SHARE * call_s, MOST_SHARE * self.seconds(had, common)) + GRACE_S
        left_s = most_s - wait.waited_s
        expected_s = max(0.0, rest_s * self._pace(mark) - (call_s - news_s))
        if left_s <= 0 or news_s > left_s:
            return Outlook(mark, common, have, why=SLOW)
        if expected_s > SLOW_SHARE * rest_s + GRACE_S:
            return Outlook(mark, common, have, why=CHEAPER)
        return Outlook(mark, common, have, left_s, max(expected_s, 1e-3))

    async def until_moved(self, mark: Mark, seconds: float) -> None:
        """Until something changes about it, or so long."""
        try:
            async with asyncio.timeout(seconds):
                await mark.moved.wait()
        except TimeoutError:
            pass

    def settle(self, wait: Wait, have: int, outlook: Outlook | None) -> None:
        """A request that may have waited goes on with `have` blocks: count what came of it, and what it says of the
        one it waited for."""
        if not wait.until:
            return
        if have >= wait.until:
            why = LOADED
        elif outlook is None:
            why = GONE
        else:
            why = outlook.why or SLOW
            if why == SLOW and outlook.mark.last_move is None:
                self._break(outlook.mark)
        self._counters.inflight_waits[why] += 1
        self._counters.inflight_wait_s += wait.waited_s
        self._counters.inflight_tokens += max(0, min(have, wait.until) - wait.had) * self._space.block_tokens

    def seconds(self, first: int, end: int) -> float:
        """Of computing blocks first .. end-1; 0.0 = not known, or none."""
        size = self._space.block_tokens
        return self._space.cost.compute_s(first * size, (end - first) * size)

    def check(self) -> None:
        """AssertionError unless the marks are what they say."""
        space = self._space
        assert self._token_bytes == sum(len(mark.tokens) for mark in self._marks.values()), "token bytes of marks"
        assert self._token_bytes <= MAX_TOKEN_BYTES or len(self._marks) == 1, "marks take too much"
        for name, mark in self._marks.items():
            assert name == mark.name, "a mark under another name"
            assert mark.start <= mark.at <= mark.end <= len(mark.tokens) // space.block_token_bytes, "a mark's range"
            assert mark.remote or not mark.over, "a mark that has ended is kept"

    # --- inside

    def _call_blocks(self) -> int:
        return max(1, int(self._space.cost.call_tokens) // self._space.block_tokens)

    def _pace(self, mark: Mark) -> float:
        """How many times longer its owner takes than computing should, from its progress so far."""
        first, last = mark.first_move, mark.last_move
        if first is None or last is None or last[1] == first[1]:
            return 1.0
        usual_s = self.seconds(first[1], last[1])
        return (last[0] - first[0]) / usual_s if usual_s else 1.0

    def _advance(self, mark: Mark) -> None:
        """Its first missing block has come."""
        space = self._space
        match = space.index.match(mark.tokens)
        at = len(match)
        if at >= mark.end:
            mark.at = mark.end
            self.end(mark)
            return
        del self._marks[mark.name]
        name = space.names_of(mark.tokens, match, at + 1)[-1]
        if name in self._marks:  # two prompts parted above here, and one of them is marked already
            self._token_bytes -= len(mark.tokens)
            mark.name = -1
            self.end(mark)
            return
        mark.name = name
        self._marks[name] = mark
        if at > mark.at:
            self._move(mark, at)
        else:
            self._wake(mark)

    def _move(self, mark: Mark, at: int) -> None:
        mark.at = at
        mark.last_move = self._clock(), at
        mark.first_move = mark.first_move or mark.last_move
        self._wake(mark)

    def _wake(self, mark: Mark) -> None:
        mark.moved.set()
        mark.moved = asyncio.Event()

    def _stale(self, mark: Mark, now: float) -> bool:
        last_s = (mark.last_move or (mark.begun_s, 0))[0]
        return now > max(last_s, mark.begun_s) + EXPIRY_SHARE * self.seconds(mark.at, mark.end) + EXPIRY_S

    def _break(self, mark: Mark) -> None:
        """It came to nothing."""
        if mark.last_move is None:
            self._distrusted[mark.owner] = self._clock() + DISTRUST_S
            self._counters.inflight_broken += 1
        self.end(mark)

    def _bound(self, owner: int | str, size: int) -> None:
        """Make room for one more mark, at the expense of the oldest."""
        owned = [each for each in self._marks.values() if each.owner == owner]
        for mark in owned[: max(0, len(owned) - MAX_OWNED + 1)]:
            self.end(mark)
        while self._marks and (len(self._marks) >= MAX_MARKS or self._token_bytes + size > MAX_TOKEN_BYTES):
            self.end(next(iter(self._marks.values())))
        for who in [who for who, until in self._distrusted.items() if until <= self._clock()]:
            del self._distrusted[who]


def _common(one: bytes, other: bytes, first: int, end: int, size: int) -> int:
    """Up to which block, `end` at most, two prompts are the same, given that they are up to `first`."""
    if one[: end * size] == other[: end * size]:
        return end
    if one[: (first + 1) * size] != other[: (first + 1) * size]:
        return first
    low, high = first + 1, end  # the same up to low, not up to high
    while high - low > 1:
        middle = (low + high) // 2
        if one[low * size : middle * size] == other[low * size : middle * size]:
            low = middle
        else:
            high = middle
    return low
