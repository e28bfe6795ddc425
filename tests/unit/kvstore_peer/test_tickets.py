"""Tickets: one use, a short life, bounds on what is lent, and a loan released once however its ticket ended."""

import asyncio

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvterrace.kvstore.lending import Loan
from kvterrace.kvstore.peer.tickets import TICKET_BYTES, Tickets

pytestmark = pytest.mark.unit


class Lent:
    """A loan of `size_bytes` that counts its releases."""

    def __init__(self, size_bytes: int = 100) -> None:
        self.released = 0
        self.loan = Loan(0, [np.zeros(size_bytes, np.uint8)], [0], [b"k" * 32], self._release)

    def _release(self) -> None:
        self.released += 1


async def test_a_ticket_is_good_once_and_its_loan_is_released_with_the_grant() -> None:
    tickets, lent = Tickets(), Lent()
    ticket = tickets.issue(lent.loan, "a")
    assert ticket is not None
    assert len(ticket) == TICKET_BYTES
    grant = tickets.take(ticket)
    assert grant is not None
    assert (grant.loan, grant.size_bytes) == (lent.loan, 100)
    assert tickets.take(ticket) is None
    assert (lent.released, tickets.outstanding, tickets.lent_bytes("a")) == (0, 1, 100)
    grant.release()
    grant.release()
    assert (lent.released, tickets.outstanding, tickets.lent_bytes("a")) == (1, 0, 0)


async def test_a_ticket_that_nobody_shows_expires_and_releases() -> None:
    tickets, lent = Tickets(ttl_s=0.02), Lent()
    ticket = tickets.issue(lent.loan)
    assert ticket is not None
    await asyncio.sleep(0.05)
    assert (lent.released, tickets.expired, tickets.outstanding) == (1, 1, 0)
    assert tickets.take(ticket) is None


async def test_a_used_ticket_does_not_expire_under_its_transfer() -> None:
    tickets, lent = Tickets(ttl_s=0.02), Lent()
    grant = tickets.take(tickets.issue(lent.loan) or b"")
    assert grant is not None
    await asyncio.sleep(0.05)
    assert (lent.released, tickets.expired) == (0, 0)
    grant.release()
    assert lent.released == 1


async def test_revoke_ends_what_was_not_used_and_nothing_else() -> None:
    tickets, unused, used = Tickets(), Lent(), Lent()
    ticket = tickets.issue(unused.loan)
    taken = tickets.issue(used.loan)
    assert ticket is not None
    assert taken is not None
    grant = tickets.take(taken)
    for each in (ticket, taken, b"nobody's"):
        tickets.revoke(each)
    assert (unused.released, used.released, tickets.outstanding) == (1, 0, 1)
    assert grant is not None
    grant.release()


async def test_close_revokes_all_that_wait() -> None:
    tickets, lents = Tickets(), [Lent() for _ in range(3)]
    for lent in lents:
        tickets.issue(lent.loan, "a")
    tickets.close()
    assert [lent.released for lent in lents] == [1, 1, 1]
    assert (tickets.outstanding, tickets.lent_bytes("a")) == (0, 0)


async def test_a_peer_has_a_budget_of_its_own_which_comes_back() -> None:
    tickets = Tickets(peer_bytes=250)
    first = tickets.issue(Lent().loan, "a")
    assert first is not None
    assert tickets.issue(Lent().loan, "a") is not None
    beyond = Lent()
    assert tickets.issue(beyond.loan, "a") is None
    assert beyond.released == 0  # still its owner's
    assert tickets.issue(Lent().loan, "b") is not None
    tickets.revoke(first)
    assert tickets.issue(beyond.loan, "a") is not None
    tickets.close()


async def test_a_loan_above_the_budget_goes_when_the_peer_has_nothing_else() -> None:
    tickets = Tickets(peer_bytes=250)
    assert tickets.issue(Lent(1000).loan, "a") is not None
    assert tickets.issue(Lent(1).loan, "a") is None
    tickets.close()


async def test_tickets_are_bounded_over_all_peers() -> None:
    tickets = Tickets(max_tickets=2)
    first = tickets.issue(Lent().loan, "a")
    assert first is not None
    assert tickets.issue(Lent().loan, "b") is not None
    assert tickets.issue(Lent().loan, "c") is None
    grant = tickets.take(first)  # being served counts too
    assert tickets.issue(Lent().loan, "c") is None
    assert grant is not None
    grant.release()
    assert tickets.issue(Lent().loan, "c") is not None
    tickets.close()


@given(
    st.lists(
        st.tuples(st.sampled_from(["issue", "take", "release", "revoke"]), st.integers(0, 5), st.integers(1, 120)),
        max_size=60,
    )
)
def test_every_loan_is_released_once_and_the_books_balance(moves: list[tuple[str, int, int]]) -> None:
    async def play() -> None:
        tickets = Tickets(max_tickets=5, peer_bytes=200)
        lents, waiting, grants = [], [], []
        for move, pick, size in moves:
            if move == "issue":
                lent = Lent(size)
                ticket = tickets.issue(lent.loan, f"peer {pick % 2}")
                if ticket is not None:
                    lents.append(lent)
                    waiting.append(ticket)
            elif move == "take" and waiting:
                grants.append(tickets.take(waiting.pop(pick % len(waiting))))
            elif move == "revoke" and waiting:
                tickets.revoke(waiting.pop(pick % len(waiting)))
            elif move == "release" and grants:
                grants.pop(pick % len(grants)).release()
            assert tickets.outstanding == len(waiting) + len(grants) <= 5
            live = sum(lent.loan.size_bytes for lent in lents if not lent.released)
            assert tickets.lent_bytes("peer 0") + tickets.lent_bytes("peer 1") == live
        tickets.close()
        for grant in grants:
            grant.release()
        assert all(lent.released == 1 for lent in lents)
        assert tickets.outstanding == 0

    asyncio.run(play())


async def test_all_peers_together_have_a_bound_too() -> None:
    tickets = Tickets(peer_bytes=1000, total_bytes=250)
    first = tickets.issue(Lent().loan, "a")
    assert first is not None
    assert tickets.issue(Lent().loan, "b") is not None
    assert tickets.issue(Lent().loan, "c") is None, "100 bytes each"
    tickets.revoke(first)
    assert tickets.issue(Lent().loan, "c") is not None
    tickets.close()
    assert tickets.total_bytes == 0
