"""Receipts are found by request and by reason, and are bounded in number and in size."""

from dataclasses import replace

import pytest
from kvterrace.kvstore.insight.names import OTHER
from kvterrace.kvstore.insight.receipts import Receipts
from kvterrace.kvstore.types import Miss, Receipt

pytestmark = pytest.mark.unit


def of(request_id: str, reason: str = "") -> Receipt:
    return Receipt(request_id, {"computed": 16}, Miss(reason) if reason else None)


def ids(found) -> list[str]:
    return [each.request_id for each in found]


def test_the_newest_come_first_and_the_oldest_leave():
    ring = Receipts(3)
    for number in range(5):
        ring.add(of(f"r{number}", "evicted" if number % 2 else "never_seen"))
    assert ids(ring) == ids(ring.find()) == ["r4", "r3", "r2"]
    assert (ring.total, len(ring)) == (5, 3)
    assert ids(ring.find(reason="evicted")) == ["r3"]
    assert ids(ring.find(reason="never_seen")) == ["r4", "r2"]
    assert ids(ring.find("r1")) == [] == ids(ring.find(reason="cleared"))


def test_a_call_with_several_prompts_is_found_by_the_id_that_its_client_saw():
    ring = Receipts(8)
    for request_id in ("cmpl-a/0", "cmpl-a/1", "cmpl-ab/0", "cmpl-a"):
        ring.add(of(request_id))
    assert ids(ring.find("cmpl-a")) == ["cmpl-a", "cmpl-a/1", "cmpl-a/0"]
    assert ids(ring.find("cmpl-a/1")) == ["cmpl-a/1"]
    assert ids(ring.find("cmpl-ab")) == ["cmpl-ab/0"]


def test_request_and_reason_together():
    ring = Receipts(8)
    for request_id, reason in (("a", "evicted"), ("a", "diverged"), ("b", "evicted")):
        ring.add(of(request_id, reason))
    assert len(list(ring.find("a", "evicted"))) == 1


def test_a_client_can_neither_grow_the_labels_nor_the_memory(desk):
    desk = desk(receipts=4)
    session = desk.open()
    for number in range(50):
        told = replace(of("same", f"made up {number}"), tokens={f"tier {number}": 5, "computed": 3}, prompt=bytes(64))
        session.served(told)
    ring, totals = desk.insight.receipts, desk.insight.served_totals
    assert len(ring) == len(list(ring.find("same"))) == 4
    assert totals.tokens == {OTHER: 250, "computed": 150}
    assert totals.misses == {OTHER: 50}
    assert all(each.prompt == b"" for each in ring)
    assert ids(ring.find(reason="made up 49")) == ["same"]


def test_the_store_says_when_and_whose(desk):
    desk = desk()
    desk.open(label="tiny").served(of("r"))
    (kept,) = desk.insight.receipts
    assert (kept.time_s, kept.label, kept.client) == (1_000_000.0, "tiny", "test")
