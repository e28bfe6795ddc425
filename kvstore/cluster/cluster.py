"""Cluster: this node's view of the others: finds who has more of a prompt, and tells them what this one has.

Whatever happens to Valkey, nothing here raises at a request or waits beyond its deadline: it answers nobody. One event
loop, two tasks: one keeps the membership, one announces.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ..elsewhere import Holder
from ..errors import ConfigError
from ..following import Claimed
from ..options import check_name
from ..tiers import Tier
from ..watch import Watcher
from .announcer import Announcer
from .computing import Claims
from .directory import ENTRY_TTL_S, Directory, Found
from .marks import marks_of
from .membership import BEAT_S, LEASE_S, Member, Membership, NodeTaken
from .stats import ClusterCounters, ClusterStatus
from .valkey import TIMEOUT_S, Outside, Unavailable, Valkey

log = logging.getLogger(__name__)

MAX_WITHDRAWING = 256  # withdrawals of claims under way at once


class Cluster:
    """url: of Valkey, see address.py; name: of the cluster; member: this node; tiers: how to reach another one, None =
    not at all. ValueError when a name or the URL is wrong. An Elsewhere."""

    def __init__(
        self,
        url: str,
        name: str,
        member: Member,
        tiers: Callable[[Member], Tier | None],
        *,
        timeout_s: float = TIMEOUT_S,
        lease_s: float = LEASE_S,
        entry_ttl_s: int = ENTRY_TTL_S,
        outside: Outside | None = None,
    ) -> None:
        self.counters = ClusterCounters()
        outside = outside or Outside()
        self._rng = outside.rng
        self._tiers = tiers
        self.name = name
        self._valkey = Valkey(
            url,
            timeout_s=timeout_s,
            clock=outside.clock,
            rng=self._rng,
            on_lost=self._lost,
            connect=outside.connect,
        )
        check_name(member.node, "node")
        self._membership = Membership(self._valkey, check_name(name, "cluster"), member, self.counters, lease_s=lease_s)
        self._directory = Directory(self._valkey, name, self.counters, entry_ttl_s=entry_ttl_s)
        self._claims = Claims(self._valkey, name, self._directory)
        self._withdrawing: set[asyncio.Task[None]] = set()
        refresh_s = entry_ttl_s / 3
        self._announcer = Announcer(self._send, self._may_send, self.counters, refresh_s=refresh_s, clock=outside.clock)
        self._tasks: list[asyncio.Task[None]] = []
        self._error = ""

    @property
    def watcher(self) -> Watcher:
        """For Store.watch."""
        return self._announcer

    @property
    def member(self) -> Member:
        """This node."""
        return self._membership.member

    @property
    def available(self) -> bool:
        return self._valkey.up and bool(self._membership.others())

    async def start(self) -> None:
        """Join. NodeTaken: another live process is this node (takes up to a lease to find out after a crash);
        ConfigError: Valkey wants another password. A Valkey that is not there is waited for in the background."""
        try:
            await self._membership.join()
            self._announcer.say_again("joined")
        except NodeTaken:
            await self._valkey.close()
            raise
        except Unavailable as error:
            if error.reason == "denied":
                await self._valkey.close()
                raise ConfigError(str(error)) from None
            self._note(str(error))
        self._tasks = [asyncio.create_task(self._always(work)) for work in (self._keep, self._announcer.run)]

    async def stop(self) -> None:
        """Leave at once: what this node announced is not believed any more. Stopping twice is harmless."""
        tasks, self._tasks = {*self._tasks, *self._withdrawing}, []
        while tasks:  # more than once: libraries lose a cancellation now and then
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=0.1)
        await self._membership.leave()
        await self._valkey.close()

    def members(self) -> list[Member]:
        """All nodes that are there, this one included; never waits."""
        return self._membership.members()

    def on_members(self, watcher: Callable[[Sequence[Member]], None]) -> Callable[[], None]:
        """It is told of all members whenever somebody came, went or changed. What this returns ends it."""
        return self._membership.watch(watcher)

    def set_draining(self, draining: bool) -> None:
        """Others prefer to ask somebody else from the next beats on."""
        self._membership.set_draining(draining)

    def tier(self, node: str) -> Tier | None:
        member = self._membership.get(node)
        return self._tiers(member) if member is not None and node != self.member.node else None

    async def find(
        self, fingerprint: bytes, keys: Sequence[bytes], first: int, *, deadline_s: float
    ) -> Sequence[Holder]:
        """Who has more than the first `first` blocks of a prompt, whose blocks from there on have these keys; the best
        first: most blocks, then who is not draining, then any. Nobody, by the deadline at the latest, when it cannot be
        found out."""
        return (await self._find(fingerprint, keys, first, deadline_s)).holders

    async def find_or_claim(
        self, fingerprint: bytes, keys: Sequence[bytes], first: int, *, compute_s: float, deadline_s: float
    ) -> Claimed:
        """As find, in the same round trip; see following.Claims. Nobody computes anything when it cannot be found
        out."""
        return await self._find(fingerprint, keys, first, deadline_s, compute_s)

    def withdraw(self, fingerprint: bytes, claim: Sequence[bytes]) -> None:
        """This node computes that no more. A withdrawal that gets lost misleads until the claim's life is over."""
        if self._valkey.up and len(self._withdrawing) < MAX_WITHDRAWING:
            task = asyncio.get_running_loop().create_task(self._withdraw(fingerprint, claim))
            self._withdrawing.add(task)
            task.add_done_callback(self._withdrawing.discard)

    async def _withdraw(self, fingerprint: bytes, claim: Sequence[bytes]) -> None:
        with contextlib.suppress(Unavailable):
            await self._claims.withdraw(fingerprint, claim, (self.member.node, self.member.epoch))

    async def _find(
        self, fingerprint: bytes, keys: Sequence[bytes], first: int, deadline_s: float, compute_s: float = 0.0
    ) -> Claimed:
        marks = marks_of(first, len(keys))
        live = {member.epoch: member for member in self._membership.others()}
        if not marks or not live or not self._valkey.up or deadline_s <= 0:
            self.counters.lookups["skipped"] += 1
            return Claimed([])
        asked, claim, mine = [keys[ordinal - first] for ordinal in marks], None, (self.member.node, self.member.epoch)
        try:
            if compute_s:
                found, claim = await self._claims.find_or_claim(
                    fingerprint, asked, live, mine, compute_s=compute_s, deadline_s=deadline_s
                )
            else:
                found = await self._directory.find(fingerprint, asked, live, deadline_s=deadline_s)
        except Unavailable as error:
            self.counters.lookups["deadline" if error.reason == "deadline" else "failed"] += 1
            return Claimed([])
        holders = self._believed(found, live, marks)
        if claim is None:
            return Claimed(holders)
        if (claim.node, claim.epoch) == mine:
            self.counters.claimed += 1
            return Claimed(holders, claim.node, mine=True, claim=asked[claim.first : claim.last + 1])
        if claim.epoch not in live or live[claim.epoch].node != claim.node:
            return Claimed(holders)
        # What is behind the last mark may be the same, too: whoever computes it says how far it goes.
        blocks = first + len(keys) if claim.last == len(marks) - 1 else marks[claim.last] + 1
        self.counters.claims_found += 1
        return Claimed(holders, claim.node, blocks)

    def _believed(self, found: Sequence[Found], live: Mapping[int, Member], marks: Sequence[int]) -> list[Holder]:
        believed = [each for each in found if each.epoch in live and live[each.epoch].node == each.node]
        self.counters.ignored["answer"] += len(found) - len(believed)
        self.counters.lookups["found" if believed else "nobody"] += 1
        self._rng.shuffle(believed)  # those that are as good share the work
        believed.sort(key=lambda each: (-each.index, live[each.epoch].draining))
        return [Holder(each.node, marks[each.index] + 1) for each in believed]

    def status(self) -> ClusterStatus:
        """As it is now."""
        return ClusterStatus(
            connected=self._valkey.up,
            joined=self._membership.joined,
            members=len(self._membership.members()),
            marks=self._announcer.marks,
            backlog=self._announcer.backlog,
            last_error=self._error or self._valkey.last_error,
            round_trip_s=self._valkey.round_trip_s,
            address=self._valkey.address.text,
        )

    async def _always(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do it until it is cancelled; an error of ours, or of who watches the members, does not end it."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("cluster: an error in the background")
            await asyncio.sleep(BEAT_S)

    async def _keep(self) -> None:
        """Beats until it is cancelled."""
        while True:
            await asyncio.sleep(BEAT_S if self._valkey.up else self._valkey.backoff_s())
            try:
                why = await self._membership.beat()
            except Unavailable as error:
                self._note(str(error))
                continue
            if not self._membership.joined:
                self._note(f"another live process is node {self.member.node!r}; this one is out of the cluster")
                continue
            if self._error:
                log.info("cluster: %s answers, this node is in", self._valkey.address.text)
            self._error = ""
            if why:
                self._announcer.say_again(why)

    async def _send(self, fingerprint: bytes, adds: Sequence[bytes], removes: Sequence[bytes]) -> None:
        await self._directory.announce(self.member.node, self.member.epoch, fingerprint, adds, removes)

    def _may_send(self) -> bool:
        return self._valkey.up and self._membership.joined

    def _lost(self) -> None:
        self.counters.lost += 1

    def _note(self, error: str) -> None:
        """Logged once until it is another."""
        if error != self._error:
            log.warning("cluster: %s", error)
        self._error = error
