"""The feed works once for all viewers and for nobody when nobody looks; actions obey roles and are audited."""

import asyncio
import json
import time
from itertools import count
from pathlib import Path

import pytest
from kvterrace.kvstore.dashboard import feed as feeds
from kvterrace.kvstore.dashboard.actions import Actions, Refused
from kvterrace.kvstore.dashboard.feed import Feed, Sort
from kvterrace.kvstore.dashboard.sheets import Sheets, Target, Whose
from kvterrace.kvstore.events.sight import everything
from kvterrace.kvstore.security.audit import AuditLog
from kvterrace.kvstore.security.guard import Denied
from kvterrace.kvstore.security.identity import Identity, Role
from kvterrace.kvstore.types import Receipt
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

ANN = Identity("ann", "", frozenset({Role.OPERATOR}))
BOB = Identity("bob", "", frozenset({Role.READER}))


class Looking:
    """A viewer."""

    sees = staticmethod(everything)

    def __init__(self, window: str = "15 min") -> None:
        self.sort = Sort("", window)
        self.shown: list[dict[str, str]] = []

    def show(self, parts) -> None:
        self.shown.append(dict(parts))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "PERIOD_S", 0.01)


async def until(condition) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        await asyncio.sleep(0.005)


async def test_all_viewers_of_a_sort_get_what_was_made_once(shop, quick: None) -> None:
    feed, viewers, longer = Feed(shop.reader), [Looking() for _ in range(5)], Looking("6 hours")
    reads = 0
    real = shop.reader.read

    def counting(*given):
        nonlocal reads
        reads += 1
        return real(*given)

    shop.reader.read = counting
    for each in (*viewers, longer):
        feed.join(each)
    await until(lambda: feed.rounds >= 2)
    await feed.stop()
    assert reads <= 2 * (feed.rounds + 1)  # one for each window
    assert all(each.shown[0]["traffic"] is viewers[0].shown[0]["traffic"] for each in viewers)


async def test_the_feed_stops_when_nobody_looks_and_begins_again(shop, quick: None) -> None:
    feed, viewer = Feed(shop.reader), Looking()
    feed.join(viewer)
    feed.join(viewer)
    await until(lambda: viewer.shown)
    feed.leave(viewer)
    feed.leave(viewer)
    await asyncio.sleep(0.05)
    rounds = feed.rounds
    await asyncio.sleep(0.1)
    assert feed.rounds == rounds
    viewer.shown.clear()
    feed.join(viewer)
    await until(lambda: viewer.shown)
    await feed.stop()


async def test_a_round_that_fails_is_not_the_last(shop, quick: None, monkeypatch, caplog) -> None:
    monkeypatch.setattr(feeds, "MAX_PERIOD_S", 0.05)
    feed, viewer, real = Feed(shop.reader), Looking(), shop.reader.read
    failed = []

    def failing(*given):
        if not failed:
            failed.append(True)
            raise RuntimeError("no")
        return real(*given)

    shop.reader.read = failing
    feed.join(viewer)
    await until(lambda: viewer.shown)
    await feed.stop()
    assert "could not be brought up to date" in caplog.text


async def test_what_is_slow_to_make_is_made_again_only_when_it_changed(shop, quick: None) -> None:
    feed, viewer = Feed(shop.reader), Looking()
    feed.join(viewer)
    await until(lambda: len(viewer.shown) >= 3)
    assert viewer.shown[1]["requests"] is viewer.shown[2]["requests"]
    shop.store.insight.receipts.add(Receipt("chatcmpl-new", {"computed": 5}, time_s=shop.now_s))
    await until(lambda: "chatcmpl-new" in viewer.shown[-1]["requests"])
    await feed.stop()


@pytest.mark.parametrize(("works_s", "rests_s"), [(0.004, 1.0), (0.06, 2.0), (0.09, 3.0), (10.0, 5.0)])
async def test_news_come_less_often_when_they_cost_more_than_their_share(shop, works_s: float, rests_s: float) -> None:
    """Once a second, but for at most 3 % of the loop's time; and every five seconds at least."""
    rested, clock = [], count(0.0, works_s)

    async def rest(seconds: float) -> None:
        rested.append(seconds)
        await asyncio.sleep(0)

    feed = Feed(shop.reader, cpu=lambda: next(clock), rest=rest)  # each round with one viewer asks twice
    feed.join(Looking())
    await until(lambda: len(rested) >= 3)
    await feed.stop()
    assert rested[:3] == pytest.approx([rests_s] * 3)


def made(shop, tmp_path: Path, who) -> tuple[Actions, Path]:
    file = tmp_path / "audit"
    return Actions(shop.servicer, AuditLog(file)), file


async def test_an_operator_acts_and_the_audit_log_has_it(shop, tmp_path: Path) -> None:
    actions, file = made(shop, tmp_path, ANN)
    reply = await actions.call("Clear", pb.ClearRequest(), lambda: ANN, "10.0.0.9")
    assert reply.blocks == 0
    line = json.loads(file.read_text())
    assert (line["identity"], line["call"], line["outcome"], line["peer"]) == ("ann", "Clear", "OK", "10.0.0.9")


async def test_a_reader_may_not_act_and_the_try_is_audited(shop, tmp_path: Path) -> None:
    actions, file = made(shop, tmp_path, BOB)
    with pytest.raises(Refused, match="role operator"):
        await actions.call("Clear", pb.ClearRequest(), lambda: BOB, "")
    assert json.loads(file.read_text())["outcome"] == "PERMISSION_DENIED"


async def test_who_was_signed_out_meanwhile_may_not_act(shop, tmp_path: Path) -> None:
    actions, _ = made(shop, tmp_path, ANN)
    with pytest.raises(Refused, match="not signed in"):
        await actions.call("Clear", pb.ClearRequest(), lambda: Denied("bad_token"), "")


async def test_what_the_store_refuses_is_told_and_audited(shop, tmp_path: Path) -> None:
    actions, file = made(shop, tmp_path, ANN)
    with pytest.raises(Refused, match="fingerprint"):
        await actions.call("Clear", pb.ClearRequest(fingerprint=b"short"), lambda: ANN, "")
    with pytest.raises(Refused, match="tenant"):
        await actions.call("Clear", pb.ClearRequest(tenant="x" * 1000), lambda: ANN, "")
    assert [json.loads(line)["outcome"] for line in file.read_text().splitlines()] == ["INVALID_ARGUMENT"] * 2


async def test_clearing_everything_asks_first_and_does_it_once(shop, tmp_path: Path) -> None:
    shop.fill(4)
    feed, drawn = Feed(shop.reader), []
    whose = Whose("", everything, True, lambda: ANN, "")
    sheets = Sheets(feed, shop.servicer, made(shop, tmp_path, ANN)[0], drawn.append, whose)
    await sheets.ask_to_clear(Target("all"))
    said = json.loads(drawn[-1])
    assert said["acts"][0]["name"] == "Clear 4 blocks"
    assert shop.store.stats().namespaces[0].blocks == 4
    await sheets.act("sure")
    assert "4 blocks" in json.loads(drawn[-1])["said"]
    await sheets.act("sure")  # there is nothing left to be sure of
    assert not any(each.blocks for each in shop.store.stats().namespaces)


async def test_ids_that_a_browser_makes_up_do_no_harm(shop, tmp_path: Path) -> None:
    feed, drawn, viewer = Feed(shop.reader), [], Looking()
    sheets = Sheets(
        feed, shop.servicer, made(shop, tmp_path, ANN)[0], drawn.append, Whose("", everything, True, lambda: ANN, "")
    )
    feed.join(viewer)
    await until(lambda: viewer.shown)
    for kind in ("prefix", "receipt", "namespace", "tenant"):
        for made_up in ("zz", "", "ab" * 32, "x" * 10_000, None, {"a": 1}, 7):
            await sheets.open(kind, made_up)
    for name in ("sure", "pin", "__class__", None, 5):
        await sheets.act(name)
    await feed.stop()
    assert all("Not here" in each or "Not done" in each or "title" in each for each in drawn)
