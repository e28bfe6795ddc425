"""The bulk channel on the simulated network: the product's tickets, its loans' memory, copied piece by piece.

In place of sockets and threads; what the two ends say to each other is not here (tests/unit/kvstore_peer has that).
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from kvterrace.kvstore.peer.bulk_client import BulkError
from kvterrace.kvstore.peer.tickets import Tickets

from .net import REFUSED_S, Broken, Net, Pipe
from .virtual import LIFE, Life

PIECE_BYTES = 1500
LONGEST_S = 5.0  # of a transfer, at the sender's


class BulkEnd:
    """Where tickets are shown. host: its name on the network."""

    def __init__(self, net: Net, host: str, life: Life, tickets: Tickets) -> None:
        self.net, self.host, self.life, self.tickets = net, host, life, tickets

    async def send(self, ticket: bytes, size_bytes: int, parts: Pipe) -> None:
        grant = self.tickets.take(ticket)
        if grant is None:
            parts.finish(BulkError("refused", "unknown ticket"))
            return
        try:
            if grant.size_bytes != size_bytes:
                parts.finish(BulkError("protocol", f"{grant.size_bytes} bytes, not {size_bytes}"))
                return
            async with asyncio.timeout(LONGEST_S):
                for block in grant.loan.blocks:
                    for at in range(0, block.nbytes, PIECE_BYTES):
                        await parts.put(block[at : at + PIECE_BYTES].tobytes())
            parts.finish()
        except TimeoutError:
            parts.finish(BulkError("broken", "too slow"))
        finally:
            grant.release()


class BulkReceiver:
    """A Receiver for one life of one host."""

    def __init__(self, net: Net, host: str) -> None:
        self._net, self._host = net, host

    async def receive(self, address: str, ticket: bytes, into: Sequence[memoryview], *, deadline_s: float) -> None:
        """As BulkClient.receive."""
        try:
            async with asyncio.timeout(max(0.0, deadline_s)):
                await self._receive(address, ticket, [view.cast("B") for view in into])
        except TimeoutError:
            raise BulkError("deadline", address) from None
        except Broken as error:
            raise BulkError("broken", str(error)) from None

    async def close(self) -> None:
        pass

    async def _receive(self, address: str, ticket: bytes, views: list[memoryview]) -> None:
        end = self._net.listening.get(f"bulk {address}")
        if not isinstance(end, BulkEnd):
            await asyncio.sleep(REFUSED_S)
            raise BulkError("unreachable", address)
        await self._net.cross(self._host, end.host)
        if not end.life.alive:
            raise Broken("reset")
        parts = Pipe(self._net, end.life, end.host, self._host)
        sending = end.life.spawn(end.send(ticket, sum(view.nbytes for view in views), parts))
        tell = _Tell(self._net, self._host, end.host, sending)
        life = LIFE.get()
        if life is not None:
            life.on_end[tell.died] = None
        try:
            await _fill(views, parts)
        finally:
            parts.close()
            if life is not None:
                life.on_end.pop(tell.died, None)
            tell.closed()


class _Tell:
    """The sender hears that its receiver is gone."""

    def __init__(self, net: Net, host: str, peer: str, sending: "asyncio.Task[Any]") -> None:
        self._net, self._way, self._sending = net, (host, peer), sending

    def died(self) -> None:
        if self._way[0] not in self._net.dark:
            self.closed()

    def closed(self) -> None:
        if not self._sending.done():
            self._net.spawn(self._reset())

    async def _reset(self) -> None:
        try:
            await self._net.cross(*self._way)
        except Broken:
            return
        self._sending.cancel()


async def _fill(views: list[memoryview], parts: Pipe) -> None:
    for view in views:
        while view:
            data = await parts.get()
            if data is None:
                raise Broken("too few bytes")
            size = min(len(view), len(data))
            view[:size] = data[:size]  # pieces never span two blocks, but a swapped one may be longer
            view = view[size:]
