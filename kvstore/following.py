"""Following: waiting for what other nodes compute, and telling them how far this one is. On the store's loop.

What another node computes is a mark in this node's own table (computing.py), for which its requests wait as for one of
their own; one task asks that node how far it is, and gives up when it does not answer. When a request goes on, it
fetches from there what there is.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from .computing import Mark
from .elsewhere import Elsewhere, Holder
from .residents import Residents
from .traced import as_part

LONG_S = 0.2  # of computing; less is not worth telling the cluster
ASK_S = 1.0  # how long another node may think before it says again how far it is
PAUSE_S = 0.05  # between two questions, at least
SURE_S = 0.3  # after which "nobody computes it here" is believed: a claim is seen before its maker knows of it
MAX_FOLLOWED = 1024
MAX_ASKED = 256  # questions of others that wait at once


@dataclass(frozen=True, slots=True)
class Claimed:
    """holders: as of Elsewhere.find. node: who computes blocks of the prompt up to `blocks`, "" = nobody; mine: it is
    this node, from this answer on; claim: then, for withdraw()."""

    holders: Sequence[Holder]
    node: str = ""
    blocks: int = 0
    mine: bool = False
    claim: Sequence[bytes] = ()


@runtime_checkable
class Claims(Protocol):
    """An Elsewhere that also knows who computes what."""

    async def find_or_claim(
        self, fingerprint: bytes, keys: Sequence[bytes], first: int, *, compute_s: float, deadline_s: float
    ) -> Claimed:
        """As find; what nobody has or computes is this node's to compute from now on, which takes it about
        compute_s."""
        ...

    def withdraw(self, fingerprint: bytes, claim: Sequence[bytes]) -> None:
        """This node does not compute it any more. Returns at once."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A tier that can tell how far its node is."""

    async def progress(
        self, fingerprint: bytes, tokens: bytes, first: int, *, wait_s: float
    ) -> tuple[int, float] | None:
        """How many blocks of a prompt it has, and the seconds until it may have all that it computes of it (0 = it
        computes none): once it has more than `first`, or does not compute, or after wait_s. None: no answer."""
        ...


class Following:
    """See the module. One for all namespaces."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    @as_part("directory")
    async def find(
        self,
        elsewhere: Elsewhere,
        space: Residents,
        tokens: bytes,
        keys: Sequence[bytes],
        first: int,
        claim: tuple[int, int] | None,
        deadline_s: float,
    ) -> Sequence[Holder]:
        """Who has more than `first` blocks. claim: session and ticket of a request that computes what nobody has or
        computes: it is marked so, or as what another node computes."""
        known = self._known(space, tokens, first)
        if known is not None:
            return [known]
        compute_s = space.computing.seconds(first, len(tokens) // space.block_token_bytes)
        if claim is None or compute_s < LONG_S or not isinstance(elsewhere, Claims):
            return await elsewhere.find(space.fingerprint, keys, first, deadline_s=deadline_s)
        owner, ticket = claim
        if not space.computing.trusts(owner) or space.index.match(tokens).tokens // space.block_tokens != first:
            return await elsewhere.find(space.fingerprint, keys, first, deadline_s=deadline_s)
        found = await elsewhere.find_or_claim(
            space.fingerprint, keys, first, compute_s=compute_s, deadline_s=deadline_s
        )
        if found.mine:
            self._promise(elsewhere, space, tokens, owner, ticket, found)
        elif found.node and found.blocks > first:
            self._follow(elsewhere, space, tokens, found)
        return found.holders

    async def close(self) -> None:
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _known(self, space: Residents, tokens: bytes, first: int) -> Holder | None:
        """A node that was waited for has at least that much: the directory need not be asked."""
        match = space.index.match(tokens)
        found = space.computing.find(tokens, match) if len(match) == first else None
        if found is None or not isinstance(found[0].owner, str) or found[0].at <= first:
            return None
        return Holder(found[0].owner, min(found[0].at, found[1]))

    def _promise(
        self, claims: Claims, space: Residents, tokens: bytes, owner: int, ticket: int, found: Claimed
    ) -> None:
        withdraw = _Once(claims, space.fingerprint, found.claim)
        match = space.index.match(tokens)
        if space.computing.promise(owner, ticket, tokens, match, on_end=withdraw) is None:
            withdraw()

    def _follow(self, elsewhere: Elsewhere, space: Residents, tokens: bytes, found: Claimed) -> None:
        tier = elsewhere.tier(found.node)
        if not isinstance(tier, Telling) or len(self._tasks) >= MAX_FOLLOWED:
            return
        part = tokens[: found.blocks * space.block_token_bytes]
        mark = space.computing.promise(found.node, 0, part, space.index.match(part))
        if mark is not None and not mark.followed:
            mark.followed = True
            self._spawn(self._watch(space, mark, tier))

    async def _watch(self, space: Residents, mark: Mark, tier: Telling) -> None:
        loop, table = asyncio.get_running_loop(), space.computing
        sure_at = loop.time() + SURE_S
        try:
            while not mark.over:
                said = await tier.progress(space.fingerprint, mark.tokens, mark.at, wait_s=ASK_S)
                if said is None:
                    return
                blocks, computing_s = said
                news = blocks > mark.at
                sure = max(blocks, mark.at) > mark.start or loop.time() > sure_at
                over = blocks >= mark.end or (not computing_s and sure)
                table.reached(mark, blocks, over=over)
                if not news:
                    await asyncio.sleep(PAUSE_S)
        finally:
            if not mark.over:
                table.doubt(mark)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class Progress:
    """Answers other nodes out of the live table of namespaces."""

    def __init__(self, spaces: Mapping[bytes, Residents]) -> None:
        self._spaces = spaces
        self._asked = 0

    async def progress(self, fingerprint: bytes, tokens: bytes, first: int, wait_s: float) -> tuple[int, float]:
        """As Telling.progress."""
        loop = asyncio.get_running_loop()
        end = loop.time() + wait_s
        while True:
            space = self._spaces.get(fingerprint)
            if space is None:
                return 0, 0.0
            match = space.index.match(tokens)
            found = space.computing.find(tokens, match)
            if found is None or found[0].remote:
                return len(match), 0.0
            mark, common = found
            left_s = end - loop.time()
            if len(match) > first or left_s <= 0 or self._asked >= MAX_ASKED:
                return len(match), max(space.computing.seconds(len(match), common), 1e-3)
            self._asked += 1
            try:
                await space.computing.until_moved(mark, left_s)
            finally:
                self._asked -= 1


class _Once:
    """Withdraws a claim."""

    def __init__(self, claims: Claims, fingerprint: bytes, claim: Sequence[bytes]) -> None:
        self._claims = claims
        self._fingerprint = fingerprint
        self._claim = claim

    def __call__(self) -> None:
        claim, self._claim = self._claim, ()
        if claim:
            self._claims.withdraw(self._fingerprint, claim)
