"""A subscriber's view is the store's content, whatever it misses, and the store is not slower for it."""

import asyncio
import random

import pytest
from kvterrace.kvstore.events.feed import Feed, FeedFull
from kvterrace.proto import BlockLayout, Namespace

pytestmark = pytest.mark.unit

LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=4, head_dim=64, dtype="float16")
OTHER = Namespace(b"weights-1", LAYOUT)


async def drain(subscription, view, at_most: int = 10**9) -> None:
    """Everything there is at the moment."""
    for _ in range(at_most):
        try:
            async with asyncio.timeout(0.02):
                batch = await subscription.next()
        except TimeoutError:
            return
        view.apply(batch)


@pytest.mark.parametrize("seed", range(6))
async def test_a_subscriber_that_lags_and_comes_and_goes_holds_what_the_store_holds(
    events_bench, make_view, make_engine, prompt, seed
):
    rng = random.Random(seed)
    b = events_bench(24, ring_batches=rng.choice([3, 8, 1000]), ring_bytes=rng.choice([2000, 1 << 20]))
    sessions = [b.lower.session, b.store.open_session(OTHER, client="engine")]
    engines = [make_engine(each) for each in sessions]
    view, subscription = make_view(), None
    for _ in range(60):
        what, which = rng.random(), rng.randrange(2)
        tokens = prompt(rng.randrange(5), rng.randint(1, 8)) + prompt(rng.randrange(50, 53), rng.randint(0, 4))
        if what < 0.35:
            await b.saved(tokens, sessions[which])
        elif what < 0.55:
            engines[which].compute(tokens)
        elif what < 0.65:
            engines[which].drop(rng, rng.randint(1, 12))
        elif what < 0.7:
            engines[which].say_all()
        elif what < 0.75:
            await b.store.clear(rng.choice([None, sessions[which].fingerprint]))
        elif what < 0.78 and which:
            sessions[1].close()
            sessions[1] = b.store.open_session(OTHER, client="engine")
            engines[1] = make_engine(sessions[1])
        elif what < 0.85 and subscription is not None:
            subscription.close()
            subscription = None
            await asyncio.sleep(rng.choice([0, 0.08]))  # longer than the feed lingers
        if subscription is None and what > 0.5:
            subscription = b.feed.subscribe(b.feed.epoch if view.next else b"", view.next)
        if subscription is not None and rng.random() < 0.4:
            await drain(subscription, view, rng.choice([1, 100]))
    subscription = subscription or b.feed.subscribe(b.feed.epoch, view.next)
    await b.store.flush(5.0)
    await asyncio.sleep(0.01)
    await drain(subscription, view)
    assert view.held == b.truth(engines)
    assert b.feed.ring_bytes <= 1 << 20


async def test_who_missed_little_gets_a_replay_and_who_missed_much_a_snapshot(events_bench, make_view, prompt):
    b, view = events_bench(32, ring_batches=4), make_view()
    subscription = b.feed.subscribe()
    await drain(subscription, view)
    for name in range(2):
        await b.lower.saved(prompt(name, 2))
        await asyncio.sleep(0.005)
    resumed = b.feed.subscribe(b.feed.epoch, view.next)
    await drain(resumed, view)
    assert (view.resets, view.held) == (1, b.truth()), "a replay"
    for name in range(2, 9):
        await b.lower.saved(prompt(name, 1))
        await asyncio.sleep(0.005)
    late = b.feed.subscribe(b.feed.epoch, view.next)
    await drain(late, view)
    assert (view.resets, view.held) == (2, b.truth()), "a snapshot"
    assert b.feed.counts.snapshots == {"new": 1, "gap": 1}


async def test_another_epoch_leaves_no_ghosts(events_bench, make_view, prompt):
    old, view = events_bench(16), make_view()
    subscription = old.feed.subscribe()
    await old.lower.saved(prompt(1, 4))
    await drain(subscription, view)
    assert view.held == old.truth()
    new = events_bench(16)
    new.feed.epoch = b"epoch-2"
    await new.lower.saved(prompt(2, 2))
    for _ in range(3):  # its sequence is beyond the old one's
        await new.lower.saved(prompt(3, 1))
    await drain(new.feed.subscribe(old.feed.epoch, view.next), view)
    assert view.held == new.truth()
    assert new.feed.counts.snapshots == {"epoch": 1}


async def test_a_slow_subscriber_costs_neither_memory_nor_others_anything(events_bench, make_view, prompt):
    b, quick = events_bench(32, ring_batches=5, ring_bytes=4000), make_view()
    b.feed.subscribe()  # which never reads
    reading = b.feed.subscribe()
    for name in range(40):
        await b.lower.saved(prompt(name, 2))
        await drain(reading, quick, 3)
        assert b.feed.ring_bytes <= 4000
    await drain(reading, quick)
    assert quick.held == b.truth()
    assert quick.resets == 1


async def test_nobody_watches_while_nobody_subscribes(events_bench, make_view, prompt):
    b, view = events_bench(16), make_view()
    await b.lower.saved(prompt(1, 4))
    assert not b.store._watchers.present
    subscription = b.feed.subscribe()
    await drain(subscription, view)
    assert view.held == b.truth()
    assert b.store._watchers.present
    subscription.close()
    await asyncio.sleep(0.1)
    assert not b.store._watchers.present
    await b.lower.saved(prompt(2, 2))  # which no batch tells of
    again = b.feed.subscribe(b.feed.epoch, view.next)
    await drain(again, view)
    assert view.held == b.truth(), "who goes on over the pause gets a snapshot"


async def test_what_changes_together_is_one_batch_and_consecutive_blocks_one_event(events_bench, make_view, prompt):
    b, view = events_bench(32, batch_s=0.02), make_view()
    subscription = b.feed.subscribe()
    await drain(subscription, view, 1)
    for blocks in (1, 2, 3, 4):
        b.lower.save(prompt(1, blocks))
    batch = await subscription.next()
    stored = [event for event in batch.events if event.tier == "dram"]
    assert [(event.count, event.first) for event in stored] == [(4, 0)]


async def test_a_large_store_comes_as_a_snapshot_in_parts_of_bounded_size(events_bench, make_view, prompt, monkeypatch):
    monkeypatch.setattr("kvterrace.kvstore.events.feed.BATCH_BYTES", 300)
    b, view = events_bench(32), make_view()
    for name in range(8):
        await b.lower.saved(prompt(name, 3))
    subscription = b.feed.subscribe()
    parts = [await subscription.next()]
    while parts[-1].more:
        parts.append(await subscription.next())
    assert len(parts) > 3
    assert [part.reset for part in parts] == [True] + [False] * (len(parts) - 1)
    for part in parts:
        view.apply(part)
    assert view.held == b.truth()


async def test_more_subscribers_than_allowed_are_refused(events_bench):
    b = events_bench(8, max_subscribers=2)
    first = b.feed.subscribe()
    b.feed.subscribe()
    with pytest.raises(FeedFull):
        b.feed.subscribe()
    first.close()
    b.feed.subscribe()


async def test_snapshots_are_rare_however_many_ask(events_bench, make_view, prompt):
    b = events_bench(16, ring_batches=2, snapshot_every_s=0.2)
    await b.lower.saved(prompt(1, 4))
    views = [make_view() for _ in range(5)]
    taken = []
    real = Feed._take_snapshot
    b.feed._take_snapshot = lambda events: taken.append(1) or real(b.feed, events)
    subscriptions = [b.feed.subscribe() for _ in views]
    for subscription, view in zip(subscriptions, views, strict=True):
        await drain(subscription, view)
        assert view.held == b.truth()
    assert len(taken) == 1


async def test_the_end_of_the_feed_ends_its_subscribers(events_bench):
    b = events_bench(8)
    subscription = b.feed.subscribe()
    await subscription.next()
    waiting = asyncio.create_task(subscription.next())
    await asyncio.sleep(0)
    b.feed.close()
    assert await waiting is None
    with pytest.raises(FeedFull):
        b.feed.subscribe()
