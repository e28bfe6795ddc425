"""What a store's real traffic comes to: figures by namespace and for all, and tasks that begin and end with it."""

import asyncio
import gc
from dataclasses import replace

import pytest
from kvterrace.kvstore.embedded import EmbeddedClient
from kvterrace.kvstore.insight.spaces import MOST_SPACES, point_sizes
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.types import Miss
from kvterrace.proto import Namespace

pytestmark = pytest.mark.unit


def test_windows_say_what_was_hit_and_what_could_have_been(desk):
    desk = desk(slots=16)
    session = desk.open()
    for name in (1, 2, 3, 1, 2, 3):  # 24 blocks in 16 slots: least-recently-used thrashes
        desk.ask(session, desk.prompt(name, 8))
    desk.insight.catch_up()
    whole, space = desk.insight.spaces()
    for each in (whole, space):
        window = each.windows[0]
        assert window.tokens == 48 * 16
        assert window.repeated_tokens == pytest.approx(24 * 16, abs=32)
        assert window.hit_tokens == desk.store.stats().counters.hit_tokens["dram"]
    assert (whole.fingerprint, space.label) == (b"", "tiny")
    assert space.dram_bytes == space.nvme_bytes == 16 * 4096
    share = {point.capacity_bytes: point.hit_share for point in space.curve}
    assert share[16 * 4096] == pytest.approx(0.0, abs=0.02)
    assert share[32 * 4096] == pytest.approx(0.5, abs=0.02)
    assert list(share) == sorted(share)


def test_what_the_engine_had_itself_counts_as_found_whether_the_store_was_asked_or_not(desk, receipt_of):
    desk = desk()
    session = desk.open()
    desk.ask(session, desk.prompt(1, 4))
    desk.ask(session, desk.prompt(1, 4), skip=4)
    session.served(replace(receipt_of("r", 16, hbm=48), prompt=desk.prompt(1, 4)))
    desk.insight.catch_up()
    window = desk.insight.spaces()[0].windows[0]
    assert (window.tokens, window.hit_tokens) == (3 * 64, 64 + 48)
    assert window.repeated_tokens == pytest.approx(128, abs=16)


def test_namespaces_have_their_own_figures_and_the_store_has_all(desk):
    desk = desk()
    one, two = desk.open(label="one"), desk.open(b"v" * 32, label="two")
    for _ in range(3):
        desk.ask(one, desk.prompt(1, 4))
    desk.ask(two, desk.prompt(1, 4))
    desk.insight.catch_up()
    whole, last, first = desk.insight.spaces()
    assert (last.label, first.label) == ("two", "one")
    assert [each.windows[0].tokens for each in (whole, last, first)] == [256, 64, 192]
    assert [each.references for each in (whole, last, first)] == [16, 4, 12]
    assert last.windows[0].repeated_tokens <= 16, "the same tokens are other blocks in another namespace"
    assert [each.label for each in desk.insight.spaces(first.fingerprint)] == ["one"]


def test_the_number_of_namespaces_is_bounded(desk):
    desk = desk()
    for number in range(MOST_SPACES + 5):
        session = desk.open(number.to_bytes(32, "little"))
        desk.ask(session, desk.prompt(1, 2))
        session.close()
    desk.insight.catch_up()
    assert len(desk.insight.spaces()) == 1 + MOST_SPACES


def test_a_finding_from_real_traffic_names_a_block_of_the_index(desk):
    desk = desk(slots=512)
    session = desk.open()
    head, rest = desk.prompt(1, 3), desk.prompt(2, 12)
    for number in range(6):
        desk.ask(session, head + desk.prompt(100 + number, 1)[:40] + rest)
    desk.insight.catch_up()
    (found,) = desk.insight.findings()
    space = desk.store._spaces[session.fingerprint]
    assert found.key == space.index.key(space.index.match(head).last)
    assert (found.token, found.kind, found.label) == (48, "unknown", "tiny")
    asyncio.run(desk.store.clear(session.fingerprint))
    assert desk.insight.findings() == [], "what was cleared is kept nowhere"


def test_points_of_both_tiers():
    sizes = point_sizes(100, 1_100)
    assert sizes[("dram", 2.0)] == 200
    assert sizes[("nvme", 0.5)] == 600
    assert sizes[("nvme", 1.0)] == 1_100
    assert all(tier == "dram" for tier, _ in point_sizes(100, 100))


async def test_it_works_by_itself_once_a_session_is_open_and_ends_with_the_store(desk, receipt_of):
    desk = desk()
    client = EmbeddedClient(desk.store, Namespace(b"w" * 32, desk.open().namespace.layout))
    await client.start()
    await client.acquire(desk.prompt(1, 4), skip=0, deadline_s=0)
    await client.served(replace(receipt_of(), miss=Miss("never_seen")))
    async with asyncio.timeout(5):
        while not desk.insight.looked or not desk.insight.history():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert desk.insight.spaces()[0].windows[0].tokens == 64
    desk.store.insight.start()  # again: no second time
    assert len([task for task in asyncio.all_tasks() if task.get_name() == "insight"]) == 2
    await client.close()
    await desk.store.stop(1.0)
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "insight"]


def test_a_store_without_a_loop_counts_all_the_same(desk, receipt_of):
    desk = desk()
    session = desk.open()
    desk.ask(session, desk.prompt(1, 2))
    session.served(receipt_of())
    assert desk.insight.served_totals.requests == 1
    gc.collect()
    assert isinstance(desk.store, Store)


def test_a_loop_that_is_gone_is_not_mourned(desk):
    desk = desk()

    async def serve() -> None:
        desk.open()

    asyncio.run(serve())
    asyncio.run(serve())  # the tasks of the first loop ended with it
    desk.store.close()
