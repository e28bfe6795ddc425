"""Tickets: what is lent to other nodes over the bulk channel, from the offer until the last byte has left.

A ticket is 16 random bytes, good for one use within `ttl_s`. Whoever shows it is served, so it is only told to whoever
asked. While a ticket lives it owns its loan: the loan is released when the ticket is revoked or expires, or when the
transfer that it paid for ends, however that ends. Used from one event loop.
"""

import asyncio
import secrets
from collections import Counter
from dataclasses import dataclass

from ..lending import Loan

TICKET_BYTES = 16
TTL_S = 5.0
MAX_TICKETS = 256
PEER_BYTES = 1 << 30
TOTAL_BYTES = 4 << 30


@dataclass(slots=True)
class _Issued:
    loan: Loan
    peer: str
    size_bytes: int
    expiry: asyncio.TimerHandle


class Grant:
    """A ticket that was shown: the loan is to be sent now. release() when no byte of it is read any more; safe to call
    again."""

    def __init__(self, tickets: "Tickets", issued: _Issued) -> None:
        self.loan = issued.loan
        self.size_bytes = issued.size_bytes
        self._tickets = tickets
        self._issued: _Issued | None = issued

    def release(self) -> None:
        issued, self._issued = self._issued, None
        if issued is not None:
            self._tickets.end(issued)


class Tickets:
    """max_tickets: that live or are being served, of all peers. peer_bytes, total_bytes: of what is lent to one peer,
    and to all of them, at a time; who has nothing may have one loan above peer_bytes, and when nobody has anything
    one may be above total_bytes, since that would never go otherwise."""

    def __init__(
        self,
        *,
        max_tickets: int = MAX_TICKETS,
        peer_bytes: int = PEER_BYTES,
        total_bytes: int = TOTAL_BYTES,
        ttl_s: float = TTL_S,
    ) -> None:
        self._max_tickets = max_tickets
        self._peer_bytes = peer_bytes
        self._total_bytes = total_bytes
        self._ttl_s = ttl_s
        self._waiting: dict[bytes, _Issued] = {}
        self._lent: Counter[str] = Counter()  # bytes by peer; a peer that has nothing is not in it
        self.serving = 0  # tickets that were shown, whose transfer has not ended
        self.expired = 0
        self.total_bytes = 0  # lent now

    def issue(self, loan: Loan, peer: str = "") -> bytes | None:
        """A ticket for `loan`, which then owns it. None: too much is lent already, and the loan stays the caller's."""
        size_bytes, lent = loan.size_bytes, self._lent.get(peer, 0)
        if self.outstanding >= self._max_tickets or (lent and lent + size_bytes > self._peer_bytes):
            return None
        if self.total_bytes and self.total_bytes + size_bytes > self._total_bytes:
            return None
        ticket = secrets.token_bytes(TICKET_BYTES)
        expiry = asyncio.get_running_loop().call_later(self._ttl_s, self._expire, ticket)
        self._waiting[ticket] = _Issued(loan, peer, size_bytes, expiry)
        self._lent[peer] += size_bytes
        self.total_bytes += size_bytes
        return ticket

    def take(self, ticket: bytes) -> Grant | None:
        """Use a ticket up. None: it is not good any more, or never was."""
        issued = self._waiting.pop(ticket, None)
        if issued is None:
            return None
        issued.expiry.cancel()
        self.serving += 1
        return Grant(self, issued)

    def revoke(self, ticket: bytes) -> None:
        """Release the loan, unless the ticket was used; for an offer that never reached who asked."""
        grant = self.take(ticket)
        if grant is not None:
            grant.release()

    def end(self, issued: _Issued) -> None:
        """The transfer is over."""
        self.serving -= 1
        self._settle(issued)

    @property
    def outstanding(self) -> int:
        """Tickets that live or are being served."""
        return len(self._waiting) + self.serving

    def lent_bytes(self, peer: str) -> int:
        """Lent to a peer now."""
        return self._lent.get(peer, 0)

    def close(self) -> None:
        """Revoke all that were not used."""
        for ticket in list(self._waiting):
            self.revoke(ticket)

    def _expire(self, ticket: bytes) -> None:
        self.expired += 1
        self._settle(self._waiting.pop(ticket))

    def _settle(self, issued: _Issued) -> None:
        self.total_bytes -= issued.size_bytes
        self._lent[issued.peer] -= issued.size_bytes
        if self._lent[issued.peer] <= 0:
            del self._lent[issued.peer]
        issued.loan.release()
