"""A store that says that somebody else computes it: the connector asks again, tells the engine, and not for ever."""

import asyncio
import time

import pytest
from kvterrace.connector.base import Delayed, Offer
from kvterrace.connector.scheduler import ticket_of
from kvterrace.kvstore.types import NO_SLOTS, Acquired, Wait

pytestmark = pytest.mark.unit

B = 4


def computing(skip: int, wait: Wait) -> Acquired:
    return Acquired(0, skip, NO_SLOTS, {}, "computing", wait=Wait(wait.ticket, wait.waited_s + 0.01, 0, 1))


def test_the_engine_is_told_and_gets_its_offer_later(rig, tokens, monkeypatch):
    asked: list[Wait | None] = []

    async def answer(tokens, *, skip, deadline_s, wait, origin):
        asked.append(wait)
        if len(asked) < 3:
            return computing(skip, wait)
        return Acquired(0, skip, NO_SLOTS, {}, "never_seen")

    monkeypatch.setattr(rig.client, "acquire", answer)
    rig.connector.fetch("a", tokens(B), 0, 1)
    assert rig.wait(Offer, "a").reason == "never_seen"
    assert [rig.wait(Delayed, "a").within_s > 0 for _ in range(2)] == [True, True]
    assert [wait.waited_s for wait in asked] == pytest.approx([0.0, 0.01, 0.02])
    assert {wait.ticket for wait in asked} == {ticket_of("a")}
    assert rig.connector.status().fetches == 1, "a delay is no answer"


def test_a_store_that_hangs_while_a_request_waits_costs_one_deadline(make_rig, tokens, monkeypatch):
    rig = make_rig(acquire_deadline_s=0.2)

    async def answer(tokens, *, skip, deadline_s, wait, origin):
        if wait.until:
            await asyncio.Event().wait()
        return computing(skip, wait)

    monkeypatch.setattr(rig.client, "acquire", answer)
    began = time.monotonic()
    rig.connector.fetch("a", tokens(B), 0, 1)
    assert rig.wait(Offer, "a").reason == "deadline"
    assert time.monotonic() - began < 2.0


def test_a_store_that_never_stops_saying_so_is_asked_plainly_in_the_end(make_rig, tokens, monkeypatch):
    rig = make_rig(compute_wait_s=0.2)
    asked: list[Wait | None] = []

    async def answer(tokens, *, skip, deadline_s, wait, origin):
        asked.append(wait)
        await asyncio.sleep(0.02)
        return computing(skip, wait) if wait is not None else Acquired(0, skip, NO_SLOTS, {}, "never_seen")

    monkeypatch.setattr(rig.client, "acquire", answer)
    rig.connector.fetch("a", tokens(B), 0, 1)
    assert rig.wait(Offer, "a").reason == "never_seen"
    assert asked[-1] is None
    assert len(asked) < 20


def test_who_is_cancelled_while_waiting_or_running_is_abandoned(rig, tokens, monkeypatch):
    told: list[int] = []

    async def answer(tokens, *, skip, deadline_s, wait, origin):
        await asyncio.sleep(0.01)
        return computing(skip, wait)

    async def abandon(ticket):
        told.append(ticket)

    monkeypatch.setattr(rig.client, "acquire", answer)
    monkeypatch.setattr(rig.client, "abandon", abandon)
    rig.connector.fetch("a", tokens(B), 0, 1)
    assert rig.wait(Delayed, "a")
    rig.connector.cancel("a")
    rig.connector.cancel("b")
    end = time.monotonic() + 5.0
    while not {ticket_of("a"), ticket_of("b")} <= set(told):
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(0.05)
    rig.poll()
    assert not [event for event in rig.events if isinstance(event, Offer)]
    assert rig.connector.status().fetches_in_flight == 0
