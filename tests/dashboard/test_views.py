"""What the parts of the page say, of a real store and of made-up traffic."""

import json
from dataclasses import replace

import pytest
from kvterrace.kvstore.dashboard.feed import Sort, _Maker
from kvterrace.kvstore.dashboard.snapshot import Last, Settings, Slow
from kvterrace.kvstore.dashboard.timeline import Timelines
from kvterrace.kvstore.dashboard.views import bar, prefixes, requests, spaces, tiers, traffic, what_if
from kvterrace.kvstore.insight.names import REASONS as KNOWN
from kvterrace.kvstore.insight.types import CurvePoint, Finding, Sample, SpaceInsight, TierSample, Window
from kvterrace.kvstore.types import Miss, Receipt
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

NOW = 1_800_000_000.0
GIB = 1 << 30


def timelines(*tokens: dict[str, int], misses: dict[str, int] | None = None) -> Timelines:
    lines = Timelines()
    samples = [
        Sample(NOW - len(tokens) + i + 0.5, 1.0, 2, each, misses or {}, 0.1, 2.0, 1.0, {})
        for i, each in enumerate(tokens)
    ]
    lines.bring(NOW, samples)
    return lines


def insight(**more: object) -> SpaceInsight:
    curve = tuple(CurvePoint(GIB << i, share) for i, share in enumerate((0.2, 0.4, 0.55, 0.62, 0.62)))
    said = {"fingerprint": b"", "label": "", "tenant": "", "windows": (Window(3600.0, 1000, 900, 700),)}
    sizes = {"sampled_share": 0.5, "references": 1000, "dram_bytes": 2 * GIB, "nvme_bytes": 16 * GIB}
    return SpaceInsight(**{**said, "curve": curve, **sizes, **more})  # type: ignore[arg-type]


def test_an_empty_store_says_what_is_missing_instead_of_showing_nothing(shop) -> None:
    seen = shop.seen()
    parts = {name: json.loads(said or "null") for name, said in _Maker().parts(seen, Sort("", "15 min")).items()}
    assert parts["figures"]["reuse"]["value"] == "–"
    for name in ("misses", "findings", "prefixes", "requests", "namespaces"):
        assert parts[name]["rows"] == []
        assert len(parts[name]["empty"]) > 15, name
    for name in ("traffic", "ttft"):
        assert parts[name]["series"] == []
        assert parts[name]["empty"]
    assert parts["curve"]["points"] == []
    assert parts["tenants"] is None
    assert parts["cluster"] is None


def test_the_first_figure_is_the_share_of_tokens_that_was_not_computed(shop) -> None:
    seen = shop.seen(timelines=timelines({"hbm": 100, "dram": 500, "computed": 200}, {"nvme": 100, "computed": 100}))
    reuse = traffic.figures(seen, "15 min")["reuse"]
    assert reuse["value"] == "70 %"
    assert reuse["sub"] == "700 of 1,000 in the last 15 min"
    assert [(each["tier"], each["share"]) for each in reuse["mix"]] == [
        ("hbm", 0.1),
        ("dram", 0.5),
        ("nvme", 0.1),
        ("computed", 0.3),
    ]


def test_the_chart_stacks_every_token_once(shop) -> None:
    seen = shop.seen(timelines=timelines({"hbm": 100, "dram": 500, "remote": 7, "computed": 200}))
    chart = traffic.traffic(seen, "5 min")
    assert [each["id"] for each in chart["series"]] == ["hbm", "dram", "remote", "computed"]
    assert len(chart["series"][0]["values"]) == chart["count"]
    assert chart["start"] + chart["count"] * chart["width"] >= NOW


def test_times_to_first_token_are_told_of_hits_and_of_the_others(shop) -> None:
    fast = Receipt("a", {"dram": 900, "computed": 100}, ttft_s=0.25)
    slow = Receipt("b", {"computed": 1000}, ttft_s=10.0)
    for receipt in (fast, slow):
        shop.store.insight.receipts.add(receipt)
    said = {each["id"]: each for each in traffic.figures(shop.seen(), "15 min")["others"]}
    assert said["ttft"]["value"] == "250 ms"
    assert said["ttft"]["sub"] == "10.0 s with less reuse · 40× sooner"


def test_savings_are_seconds_and_become_money_only_with_a_price(shop) -> None:
    seen = shop.seen()
    seen.stats.counters.saved_s = 7200.0
    said = {each["id"]: each for each in traffic.figures(seen, "15 min")["others"]}["saved"]
    assert said["value"] == "2 h"
    assert said["sub"].startswith("4.00 EUR since the start")
    assert "2.00 EUR an hour" in said["how"]
    without = replace(seen, settings=Settings("node-1"))
    said = {each["id"]: each for each in traffic.figures(without, "15 min")["others"]}["saved"]
    assert "EUR" not in said["sub"]
    assert "--gpu-price" in said["sub"]


def test_a_cache_without_limit_is_compared_with_the_store(shop) -> None:
    said = {each["id"]: each for each in traffic.figures(shop.seen(slow=Slow(spaces=[insight()])), "15 min")["others"]}[
        "limitless"
    ]
    assert said["value"] == "90 %"
    assert said["sub"] == "20 points to gain on the store's 70 %, last hour"


def test_more_memory_is_one_sentence(shop) -> None:
    assert what_if.sentence(insight()) == "+2 GiB of DRAM → +15 points of tokens from DRAM"
    full = insight(dram_bytes=16 * GIB)
    assert what_if.sentence(full) == "Half of the DRAM, 8 GiB, would hit as much: what is asked for fits."
    last = insight(dram_bytes=8 * GIB)
    assert what_if.sentence(last) == "More DRAM would bring nothing; half of it would cost 7.0 points."
    chart = what_if.curve(shop.seen(slow=Slow(spaces=[insight()])))
    assert [(each["name"], each["share"]) for each in chart["marks"]] == [("DRAM now", 0.4), ("with NVMe", 0.62)]


def test_several_models_have_curves_of_their_own_where_the_stores_has_points(shop) -> None:
    spaces = [insight(), insight(fingerprint=b"a" * 32, label="llama"), insight(fingerprint=b"b" * 32, label="")]
    chart = what_if.curve(shop.seen(slow=Slow(spaces=spaces)))
    assert [each["name"] for each in chart["models"]] == ["llama", (b"b" * 32).hex()[:12]]
    assert all(len(each["shares"]) == len(chart["points"]) for each in chart["models"])
    assert what_if.curve(shop.seen(slow=Slow(spaces=spaces[:2])))["models"] == [], "the only one's is the store's"


@pytest.mark.parametrize(("capacity", "share"), [(GIB // 2, 0.2), (GIB, 0.2), (3 * GIB, 0.475), (64 * GIB, 0.62)])
def test_between_the_points_of_the_curve_it_is_straight(capacity: int, share: float) -> None:
    assert what_if.share_at(insight().curve, capacity) == pytest.approx(share)


def test_findings_show_both_texts_with_the_difference_cut_out(shop) -> None:
    found = Finding(
        b"f" * 32, "llama", "", b"k" * 32, 40, "timestamp", 12, 345_678.0, b"", b"", "Now: 10:01. Be", "Now: 10:02. Be"
    )
    row = what_if.findings(shop.seen(slow=Slow(findings=[found])))["rows"][0]
    assert row["texts"] == {"ours": ["Now: 10:0", "1", ". Be"], "cached": ["Now: 10:0", "2", ". Be"]}
    assert row["cost"] == "346 k tokens a day computed again"
    assert "round it" in row["advice"]


@pytest.mark.parametrize(("ours", "cached"), [("", ""), ("aa", "aaa"), ("abc", ""), ("aXa", "aa"), ("same", "same")])
def test_a_difference_never_loses_or_doubles_a_character(ours: str, cached: str) -> None:
    said = what_if.difference(ours, cached)
    assert "".join(said["ours"]) == ours
    assert "".join(said["cached"]) == cached


def test_every_reason_has_words(shop) -> None:
    assert set(KNOWN) - {"other"} <= set(tiers.REASONS)
    seen = shop.seen(timelines=timelines({"computed": 1}, misses={"never_seen": 60, "diverged": 30, "evicted": 10}))
    rows = tiers.misses(seen, "15 min")["rows"]
    assert [(each["id"], each["text"]) for each in rows] == [
        ("never_seen", "60 %"),
        ("diverged", "30 %"),
        ("evicted", "10 %"),
    ]
    many = dict.fromkeys(list(tiers.REASONS)[:9], 5)
    rows = tiers.misses(shop.seen(timelines=timelines({"computed": 1}, misses=many)), "15 min")["rows"]
    assert rows[-1]["label"] == "other reasons"
    assert sum(each["share"] for each in rows) == pytest.approx(1.0)


def test_tiers_tell_what_comes_and_goes_and_which_device_is_out(shop) -> None:
    lately = [Sample(NOW, 2.0, 0, {}, {}, None, None, 0.0, {"dram": TierSample(1, 2, 4096, 2048)})]
    row = tiers.tiers(shop.seen(lately=lately))["rows"][0]
    assert row["label"] == "DRAM"
    assert dict(row["facts"])["in"] == "2 KiB/s"
    assert dict(row["facts"])["out"] == "1 KiB/s"


def test_a_prefix_is_named_by_its_text_where_that_is_allowed_and_by_its_key_elsewhere(shop) -> None:
    one = pb.PrefixStatus(key=b"\xab" * 32, label="llama", text="You are\nhelpful", tier_blocks={"dram": 3, "nvme": 3})
    two = pb.PrefixStatus(key=b"\xcd" * 32, label="llama", pinned_blocks=2, leases=1)
    seen = shop.seen(slow=Slow(prefixes=pb.PrefixesReply(prefixes=[one, two], total=2)))
    rows = prefixes.prefixes(seen)["rows"]
    assert rows[0]["name"]["text"] == "You are ⏎ helpful"
    assert rows[1]["name"]["text"] == "cd" * 6
    assert rows[1]["name"]["marks"] == ["pinned", "in use"]
    assert [each["id"] for each in prefixes.prefix_sheet(two, True)["acts"]] == ["unpin", "clear"]
    assert prefixes.prefix_sheet(two, False)["acts"] == []


def test_a_receipt_says_where_every_token_came_from(shop) -> None:
    receipt = Receipt("chatcmpl-1", {"dram": 900, "computed": 100}, Miss("diverged", 900), ttft_s=0.25, time_s=NOW - 5)
    shop.store.insight.receipts.add(receipt)
    seen = shop.seen()
    row = requests.requests(seen)["rows"][0]
    assert row["why"]["text"] == "differs from what is cached"
    sheet = requests.receipt_sheet(seen.last.receipts[0], ["Because."])
    assert sheet["groups"][0]["rows"] == [("DRAM", "900 tokens, 90 %"), ("computed", "100 tokens, 10 %")]
    assert ("Saved by the cache", "not known") in sheet["groups"][1]["rows"]


def test_the_bar_tells_what_is_wrong_before_that_it_is_ready(shop) -> None:
    assert bar.bar(shop.seen(), "15 min")["state"] == "ready"
    assert bar.bar(shop.seen(drain=pb.DrainProgress(phase="handing", waiting_blocks=7)), "15 min")["state"] == (
        "draining: handing, 7 blocks to go"
    )
    lonely = pb.ClusterStatus(node="a", connected=False, last_error="refused", members=[pb.MemberStatus(node="a")])
    seen = shop.seen(cluster=lonely)
    assert bar.bar(seen, "15 min")["state"] == "without Valkey"
    table = spaces.cluster(seen)
    assert table is not None
    assert "Valkey does not answer: refused" in table["trouble"]


def test_a_tenants_viewer_learns_nothing_of_others(shop) -> None:
    mine, other = b"m" * 32, b"o" * 32
    for fingerprint, label in ((mine, "mine"), (other, "rival")):
        shop.store.insight.receipts.add(
            Receipt(
                f"id-{label}",
                {"computed": 50},
                Miss("other_namespace", fields=("tenant",)),
                time_s=NOW - 1,
                fingerprint=fingerprint,
                label=label,
            )
        )
    seen = shop.reader.read(lambda fingerprint: fingerprint == mine, Slow())
    assert not seen.whole
    said = json.dumps(_Maker().parts(seen, Sort("acme", "15 min")))
    assert "id-mine" in said
    assert "rival" not in said
    assert "other_namespace" not in said
    assert tiers.reason_name("other_namespace") not in said
    assert seen.timelines["15 min"].tokens() == {"computed": 50}
    mine_of_it = replace(seen, slow=Slow(spaces=[insight(fingerprint=mine, tenant="acme")]))
    assert {each["id"]: each for each in traffic.figures(mine_of_it, "15 min")["others"]}["limitless"][
        "value"
    ] == "90 %"
    assert "whole node" in what_if.curve(mine_of_it)["empty"]
    assert seen.last != Last()
