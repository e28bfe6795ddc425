"""Turns: a session's side of sharing what is being computed: it waits for others, and promises to compute the rest."""

import asyncio
from dataclasses import replace

from ..radix import Match
from .computing import Computing, Outlook
from .traced import as_part
from .types import NO_SLOTS, Acquired, Wait

POLL_S = 0.2  # a request that waits is answered so often, so that a store that hangs is noticed as soon as ever
ANSWER_S = 0.002  # that an answer counts for at least: whatever happens, patience comes to an end
DEADLINE_SHARE = 0.5  # of a call's deadline, at most


class Turns:
    """computing: of the session's namespace. owner: the session's id."""

    def __init__(self, computing: Computing, owner: int) -> None:
        self._computing = computing
        self.owner = owner

    def outlook(self, tokens: bytes, match: Match, skip: int, wait: Wait | None) -> Outlook | None:
        """What waiting for somebody promises; None: there is nobody, or the request does not wait."""
        if wait is None or not len(self._computing) or len(match) < skip:
            return None
        return self._computing.outlook(tokens, match, wait, self.owner)

    def waits(self, tokens: bytes, match: Match, skip: int, wait: Wait | None) -> bool:
        outlook = self.outlook(tokens, match, skip, wait)
        return outlook is not None and not outlook.why

    @as_part("wait for computing")
    async def pause(self, tokens: bytes, match: Match, skip: int, wait: Wait, deadline_s: float) -> tuple[Wait, float]:
        """Wait until the one who computes has news, or a while; the request's patience as it is then, and how long it
        was."""
        outlook = self.outlook(tokens, match, skip, wait)
        if outlook is None or outlook.why:
            return wait, 0.0
        loop = asyncio.get_running_loop()
        began, longest_s = loop.time(), min(POLL_S, deadline_s * DEADLINE_SHARE, outlook.left_s)
        await self._computing.until_moved(outlook.mark, longest_s)
        took_s, wait = loop.time() - began, _waiting(wait, outlook)
        return replace(wait, waited_s=wait.waited_s + took_s), took_s

    def again(self, tokens: bytes, match: Match, skip: int, wait: Wait | None) -> Acquired | None:
        """The answer to a request for which waiting pays; None when it does not."""
        outlook = self.outlook(tokens, match, skip, wait)
        if wait is None or outlook is None or outlook.why:
            return None
        told = replace(_waiting(wait, outlook), expected_s=outlook.expected_s, waited_s=wait.waited_s + ANSWER_S)
        return Acquired(0, skip, NO_SLOTS, {}, "computing", wait=told)

    def go(self, tokens: bytes, match: Match, skip: int, wait: Wait | None, *, promise: bool) -> None:
        """The request has got what there is, and computes the rest. promise: that may be saved here."""
        if wait is None:
            return
        if wait.until:
            self._computing.settle(wait, len(match), self.outlook(tokens, match, skip, wait))
        if promise and len(match) >= skip:
            self._computing.promise(self.owner, wait.ticket, tokens, match)

    def close(self) -> None:
        self._computing.leave(self.owner)


def _waiting(wait: Wait, outlook: Outlook) -> Wait:
    had = wait.had if wait.until else outlook.have
    return replace(wait, had=min(had, outlook.common), until=outlook.common)
