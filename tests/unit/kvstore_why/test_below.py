"""Reasons where there is a tier below DRAM: which tier a block left last, and which one has what did not come."""

from dataclasses import replace

import pytest
from kvterrace.kvstore.tiers import Failed, Miss
from kvterrace.kvstore.types import Miss as Why

pytestmark = pytest.mark.unit

B = 4


async def push_out(d, session, blocks: int) -> None:
    for name in range(blocks):
        await d.saved(session, d.prompt(9000 + name, 1))


async def test_what_left_dram_alone_is_no_miss_and_what_left_both_says_the_last(lower) -> None:
    d = lower(8, blocks=20)
    session = d.open()
    await d.saved(session, d.prompt(1, 4))
    d.now += 50
    await push_out(d, session, 8)
    assert session.lookup(d.prompt(1, 4)).miss is None, "it is below"
    d.now += 10
    for name in range(40):
        await d.saved(session, d.prompt(5000 + name, 1))
    d.now += 3
    miss = (await d.aask(session, d.prompt(1, 4))).miss
    assert (miss.reason, miss.tier, miss.token) == ("evicted", "nvme", 0)
    assert (miss.gone_s, miss.kept_s) == (3.0, 60.0)
    assert d.store.stats().counters.residence["nvme", "unused"].total > 0


async def test_what_was_not_waited_for_names_the_tier_that_has_it(lower) -> None:
    d = lower(8)
    session = d.open()
    await d.saved(session, d.prompt(1, 6))
    await push_out(d, session, 6)
    here = session.lookup(d.prompt(1, 6)).tiers["dram"]
    got = await d.aask(session, d.prompt(1, 6), deadline_s=0)
    assert got.miss == Why("deadline", here, "nvme")


async def test_what_is_slower_to_load_names_its_tier(lower) -> None:
    d = lower(8)
    session = d.open()
    await d.saved(session, d.prompt(1, 6))
    await push_out(d, session, 8)
    session.observe([(0, 16, 1e-9), (0, 32, 2e-9), (0, 64, 4e-9), (16, 32, 2e-9), (0, 128, 8e-9)])
    for _ in range(4):
        d.store._io.observe("nvme", 4096, 1.0, "read")
    assert (await d.aask(session, d.prompt(1, 6))).miss == Why("slower_to_load", 0, "nvme")


@pytest.mark.parametrize("reason", ["io", "breaker"])
async def test_a_device_that_fails_is_named(lower, reason: str) -> None:
    d = lower(8)
    session = d.open()
    await d.saved(session, d.prompt(1, 6))
    await push_out(d, session, 8)
    d.tier.trouble = Failed(reason)
    assert (await d.aask(session, d.prompt(1, 6))).miss == Why(reason, 0, "nvme")


@pytest.mark.parametrize(("answer", "reason"), [(Failed("corrupt"), "corrupt"), (Miss(), "evicted")])
async def test_what_the_tier_lost_is_remembered_with_its_reason(lower, answer, reason: str) -> None:
    d = lower(8)
    session = d.open()
    await d.saved(session, d.prompt(1, 6))
    await push_out(d, session, 8)
    d.tier.trouble = answer
    d.now += 5
    assert (await d.aask(session, d.prompt(1, 6))).miss == Why(reason, 0, "nvme", 0.0, 5.0)
    await d.store._promoter.settled()
    d.now += 1
    assert (await d.aask(session, d.prompt(1, 6))).miss == Why(reason, 0, "nvme", 1.0, 5.0), "and from then on"


async def test_too_many_leases_are_not_called_an_eviction(lower) -> None:
    d = lower(8)
    session = d.open()
    await d.saved(session, d.prompt(1, 4))
    await push_out(d, session, 8)
    held = [await session.acquire(d.prompt(9007, 1), skip=0, deadline_s=0)]
    object.__setattr__(d.store._shared, "max_leases", 1)
    assert (await session.acquire(d.prompt(1, 4), skip=0, deadline_s=5)).miss == Why("busy", 0, "nvme")
    session.release(held[0].lease)


async def test_clear_is_the_reason_in_either_tier(lower) -> None:
    d = lower(8)
    session = d.open()
    await d.saved(session, d.prompt(1, 4))
    await push_out(d, session, 8)
    d.now += 5
    await d.store.clear(session.fingerprint)
    d.now += 2
    assert (await d.aask(session, d.prompt(1, 4))).miss == Why("cleared", 0, "nvme", 2.0, 5.0)


async def test_where_it_parts_from_what_is_below_is_found_too(lower) -> None:
    d = lower(4)
    session = d.open()
    await d.saved(session, d.tokens(1, 2, 3, 4, 5, 6, 7, 8))
    await push_out(d, session, 4)
    asked = d.tokens(1, 2, 3, 4, 5, 6, 7, 99)
    assert session.lookup(asked).tiers == {"nvme": B}
    found = session.lookup(asked).miss
    assert (found.reason, found.token) == ("diverged", 7)
    assert (await d.aask(session, asked)).miss == found


async def test_after_a_restart_ghosts_and_explanations_work_on_what_was_found(lower) -> None:
    first = lower(8)
    session = first.open()
    await first.saved(session, first.prompt(1, 4))
    await first.saved(session, first.prompt(2, 4))
    again = lower(8, tier=first.tier)
    said = again.store.explainer.explain(session.fingerprint, again.prompt(1, 6))
    assert (said.label, said.tokens) == ("", {"nvme": 4 * B}), "without any engine"
    assert (said.miss.reason, said.miss.token) == ("never_seen", 4 * B)
    later = again.open()
    catalog = again.store._depot.of(later.fingerprint)
    again.now += 9
    await again.tier.drop(catalog.clear_prefix(again.prompt(1, 2)))
    miss = later.lookup(again.prompt(1, 4)).miss
    assert (miss.reason, miss.token, miss.tier, miss.kept_s) == ("cleared", B, "nvme", 9.0)
    assert catalog.clear_prefix(again.prompt(1, 2)) == [], "it is gone"
    assert later.lookup(again.prompt(2, 4)).miss is None


async def test_another_namespace_that_has_it_below_is_found(lower, space) -> None:
    d = lower(8)
    other = d.open(replace(space, producer="x"))
    await d.saved(other, d.prompt(1, 2))
    session = d.open()
    await push_out(d, session, 8)
    assert not len(d.store._spaces[other.fingerprint].index)
    assert session.lookup(d.prompt(1, 2)).miss == Why("other_namespace", 0, fields=("producer",))


async def test_moving_up_is_no_end(lower) -> None:
    """What an exclusive tier gives back to DRAM has not left the store."""
    d = lower(8)
    session = d.open()
    await d.saved(session, d.prompt(1, 4))
    catalog = d.store._depot.of(session.fingerprint)
    await d.store._depot.forget_tips(catalog, d.prompt(1, 4), 0)
    assert ("nvme", "unused") not in d.store.stats().counters.residence
    assert session.lookup(d.prompt(1, 4)).miss is None


async def test_after_an_upgrade_what_the_old_model_left_on_disk_is_recognised(lower, space) -> None:
    """Nobody has opened its namespace since the start: what differs is not known, but that it is another one is."""
    before = lower(8)
    await before.saved(before.open(), before.prompt(1, 3))
    after = lower(8, tier=before.tier)
    session = after.open(replace(space, weights_digest=b"weights-1"))
    assert session.lookup(after.prompt(1, 4)).miss == Why("other_namespace", 0)
    assert session.lookup(after.prompt(2, 4)).miss == Why("never_seen", 0)
    after.open()
    assert session.lookup(after.prompt(1, 4)).miss == Why("other_namespace", 0, fields=("weights",))
