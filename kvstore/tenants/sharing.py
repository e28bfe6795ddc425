"""Sharing: copies the heads that an operator lists between tenants' own blocks and a space that is nobody's, in DRAM.

A shared space stands beside each namespace: the same, but for its salt. What a tenant that may write a head commits of
it is copied there; a prompt that begins with a head whose blocks its tenant lacks gets copies of its own from there,
by flights like from any tier. So keys, leases, quotas and eviction stay each tenant's own, and only listed tokens ever
cross, at the price of one copy a tenant. Used on the store's loop; the bytes are copied by threads.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Protocol

import xxhash

from ...proto import Namespace
from ...radix import Match, Retentions, block_keys
from ..depot import Depot
from ..flight import Flight
from ..promoter import READ_DEADLINE_S, Promoter
from ..residents import ABSENT, Residents
from ..tiers import Failed, Got, Hit, Miss, Wanted
from .heads import HeadList
from .tenants import Tenants

MAX_COPIES = 8  # into shared spaces at once; one more waits for the next that reads it
NAME = "dram"


class Sharing:
    """spaces: the store's live table; space_of: makes the Residents of a shared namespace."""

    def __init__(
        self,
        tenants: Tenants,
        spaces: Mapping[bytes, Residents],
        space_of: Callable[[Namespace], Residents],
        depot: Depot,
        promoter: Promoter,
        lease_ids: Iterator[int],
    ) -> None:
        self._heads = tenants.heads
        self._spaces = spaces
        self._space_of = space_of
        self._depot = depot
        self._promoter = promoter
        self._lists: dict[tuple[str | None, int], HeadList] = {}
        self._under_way: dict[tuple[bytes, bytes], asyncio.Task[None]] = {}
        self.copies = Copies(lease_ids)

    def reach(self, space: Residents, tokens: bytes, have: int) -> int:
        """Up to which block of a prompt its head can be copied; `have` if nothing beyond that."""
        if space.companion is None:
            return have
        heads = self._list(None, space.block_tokens)
        end = heads.blocks(tokens) if have < heads.longest else 0
        return max(self._shared_blocks(space, tokens, end), have) if end > have else have

    def offer(self, space: Residents, tokens: bytes, match: Match) -> None:
        """A tenant has the leading blocks of a prompt: those of a head that it may write are copied, unless they are
        shared already."""
        if space.companion is None or space.tenant is None:
            return
        heads = self._list(space.tenant.name, space.block_tokens)
        end = min(heads.blocks(tokens), len(match)) if heads.longest else 0
        if not end or self._shared_blocks(space, tokens, end) >= end:
            return
        head = tokens[: end * space.block_token_bytes]
        name = space.companion.fingerprint, head
        if len(self._under_way) < MAX_COPIES and name not in self._under_way:
            task = asyncio.get_running_loop().create_task(self._publish(space, head))
            self._under_way[name] = task
            task.add_done_callback(lambda _: self._under_way.pop(name))

    async def bring(self, space: Residents, head: bytes, deadline_s: float) -> list[Flight]:
        """Copy a head from the shared space, as far as it is in DRAM there, within the deadline; the flights, to be
        left like others."""
        shared = self.shared(space)
        have = len(shared.index.match(head))
        flights, _ = await self._copy(shared, space, head[: have * space.block_token_bytes], deadline_s)
        return flights

    def shared(self, space: Residents) -> Residents:
        """The shared space beside a tenant's; what computing takes is the same there."""
        assert space.companion is not None
        shared = self._space_of(space.companion.namespace)
        shared.cost = space.cost
        return shared

    async def settled(self) -> None:
        """Wait until nothing is being copied into shared spaces."""
        while self._under_way:
            await asyncio.wait(set(self._under_way.values()))

    async def _publish(self, space: Residents, head: bytes) -> None:
        shared = self.shared(space)
        shared.held += 1
        flights: list[Flight] = []
        try:
            flights, _ = await self._copy(space, shared, head, READ_DEADLINE_S)
        finally:
            self._promoter.leave(flights)
            shared.held -= 1

    async def _copy(
        self, source: Residents, target: Residents, head: bytes, deadline_s: float
    ) -> tuple[list[Flight], str]:
        """From one space to another; why it is not all."""
        match = target.index.match(head)
        if len(match) * target.block_token_bytes >= len(head):
            return [], ""
        copies = FromSpace(source, target, head, self.copies)
        flights, short = self._promoter.begin(target, head, match, copies, urgent=True)
        try:
            return flights, await self._promoter.wait(flights, deadline_s) or short
        except BaseException:
            self._promoter.leave(flights)
            raise

    def _shared_blocks(self, space: Residents, tokens: bytes, end: int) -> int:
        """Of the first `end` blocks of a prompt, those that are shared, in DRAM or below."""
        assert space.companion is not None
        name = space.companion.fingerprint
        shared, catalog = self._spaces.get(name), self._depot.of(name)
        here = len(shared.index.match(tokens, limit=end)) if shared is not None else 0
        below = len(catalog.index.match(tokens, limit=end)) if catalog is not None and here < end else 0
        return max(here, below)

    def _list(self, writer: str | None, block_tokens: int) -> HeadList:
        """Heads that a tenant may write; None: all."""
        name = writer, block_tokens
        if name not in self._lists:
            heads = [each for each in self._heads if writer is None or each.from_(writer)]
            self._lists[name] = HeadList(heads, block_tokens)
        return self._lists[name]


class Copies:
    """Read leases of copies under way, by whose blocks they are on."""

    def __init__(self, lease_ids: Iterator[int]) -> None:
        self._lease_ids = lease_ids
        self._held: dict[int, Residents] = {}

    def leases(self, space: Residents) -> list[int]:
        """Read leases held on a namespace."""
        return [lease for lease, owner in self._held.items() if owner is space]

    async def copy(self, space: Residents, wanted: Sequence[Wanted]) -> list[Got]:
        """Copy these consecutive blocks of a prompt out of a space, and compare their checksums."""
        first, prompt = wanted[0].ordinal, wanted[-1].prompt
        match = space.index.match(prompt, limit=first + len(wanted))
        if len(match) <= first:
            return [Miss()] * len(wanted)
        space.index.touch(match.blocks)
        lease = next(self._lease_ids)
        slots = space.read(lease, match, first)
        self._held[lease] = space
        corrupt: list[int] = []
        try:
            blocks = [space.view.block(slot) for slot in slots.slots.tolist()]
            sums = await asyncio.to_thread(_copy, blocks, wanted)
            said = slots.checksums.tolist()
            corrupt = [at for at, (ours, theirs) in enumerate(zip(said, sums, strict=True)) if ours != theirs]
        finally:
            del self._held[lease]
            space.end_read(space.reads[lease], corrupt)
        good = corrupt[0] if corrupt else len(sums)
        answers: list[Got] = [Hit(each) for each in sums[:good]]
        return answers + [Failed("corrupt") if corrupt else Miss()] * (len(wanted) - good)


class Target(Protocol):
    """Where copies go."""

    @property
    def fingerprint(self) -> bytes: ...

    @property
    def namespace(self) -> Namespace: ...


class FromSpace:
    """Blocks of another space in DRAM, as a Source. head: packed tokens of those that may come."""

    def __init__(self, space: Residents, target: Target, head: bytes, copies: Copies) -> None:
        namespace = target.namespace
        self._space = space
        self._copies = copies
        self._keys = block_keys(target.fingerprint, head, namespace.layout.block_tokens, hash_name=namespace.hash_name)
        self._root = target.fingerprint

    name = NAME
    written = ABSENT
    origin = 0

    @property
    def end(self) -> int:
        return len(self._keys)

    def keys(self, first: int, end: int) -> list[bytes]:
        return self._keys[first:end]

    def above(self, ordinal: int) -> bytes:
        return self._keys[ordinal - 1] if ordinal else self._root

    def retentions(self, first: int, end: int) -> Retentions | None:
        """What another tenant asked for is not this one's business."""
        return None

    async def get(self, wanted: Sequence[Wanted], *, deadline_s: float) -> list[Got]:
        return await self._copies.copy(self._space, wanted)

    def why(self, answer: Got) -> str:
        return answer.reason if isinstance(answer, Failed) else "evicted"

    def lost(self, ordinal: int, key: bytes, answer: Got) -> Coroutine[Any, Any, Any] | None:
        return None

    def landed(self, tokens: bytes, first: int) -> Coroutine[Any, Any, Any] | None:
        return None


def _copy(blocks: Sequence[Any], wanted: Sequence[Wanted]) -> list[int]:
    """In a thread: the bytes of each block into its place; their xxh3-64 there."""
    sums: list[int] = []
    for block, each in zip(blocks, wanted, strict=False):
        into = each.into[: each.block_bytes]
        into[:] = block[: each.block_bytes]
        sums.append(xxhash.xxh3_64_intdigest(into.data))
    return sums
