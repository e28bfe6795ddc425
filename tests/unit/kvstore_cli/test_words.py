"""Receipts and misses in sentences, two prompts beside each other, rates between two answers."""

import pytest
from kvterrace.kvstore.around import differing
from kvterrace.kvstore.prefix_view import kept, one_line
from kvterrace.kvstore.rates import Frame, frame_json, frame_tables
from kvterrace.kvstore.words import miss_sentences, receipt_sentences, said
from kvterrace.proto import kv_pb2 as pb
from kvterrace.radix import pack_tokens
from rich.console import Console, Group

pytestmark = pytest.mark.unit

STORES = ["never_seen", "evicted", "corrupt", "cleared", "diverged", "other_namespace", "not_committed", "computing"]
STORES += ["deadline", "slower_to_load", "full", "quota", "io", "breaker", "busy", "disconnected", "error"]
ENGINES = ["not_in_hbm", "cache_off", "no_pages", "cancelled", "stale"]


@pytest.mark.parametrize("reason", [*STORES, *ENGINES])
def test_each_reason_has_words_of_its_own_that_say_where(reason: str) -> None:
    lines = miss_sentences(pb.Miss(reason=reason, token=2048))
    assert "token 2,048" in lines[0]
    assert not lines[0].endswith(f"reuse ended: {reason}.")
    assert all(line.endswith(".") or line.endswith("?") for line in lines)


def test_a_reason_of_a_newer_sidecar_is_told_as_it_is() -> None:
    assert miss_sentences(pb.Miss(reason="gamma_rays", token=16)) == ["At token 16 reuse ended: gamma_rays."]


def test_words_say_what_differs_between_namespaces() -> None:
    (line, _) = miss_sentences(pb.Miss(reason="other_namespace", fields=["weights"]))
    assert "for another namespace: weights differs." in line
    (line, _) = miss_sentences(pb.Miss(reason="other_namespace", token=16, fields=["dtype", "layout"]))
    assert "dtype, layout differ." in line


def test_a_receipt_tells_everything_was_found_only_when_it_was() -> None:
    receipt = pb.Receipt(tokens={"hbm": 64, "computed": 5})
    assert receipt_sentences(receipt) == [
        "Of 69 prompt tokens, 64 came from the engine's HBM and 5 were computed.",
        "Every full block was found; what was computed is behind the last of them.",
    ]
    nothing = pb.Receipt(tokens={"computed": 5}, saved_s=-0.01)
    assert receipt_sentences(nothing)[:2] == [
        "Of 5 prompt tokens, all were computed.",
        "Nothing was loaded; asking the cache took 10 ms.",
    ]


def test_the_difference_is_marked_and_long_texts_are_cut_around_it() -> None:
    ours, cached = differing("a" * 200 + "Monday" + "z" * 200, "a" * 200 + "Sunday" + "z" * 200)
    assert (ours.plain, cached.plain) == (f"{'a' * 40}[Mo]nday{'z' * 36}", f"{'a' * 40}[Su]nday{'z' * 36}")
    ours, cached = differing("same", "same and more")
    assert (ours.plain, cached.plain) == ("same[]", "same[ and more]")
    ours, cached = differing("", "", pack_tokens([1, 2, 3]), pack_tokens([1, 9, 3]))
    assert (ours.plain, cached.plain) == ("1 [2] 3", "1 [9] 3")
    ours, _ = differing("line\nend\x1b[31m", "other")
    assert "\x1b" not in ours.plain  # a prompt cannot speak to the terminal


def test_numbers_for_people() -> None:
    assert [said(each) for each in (0.0, 0.05, 1.5, 30.0, 600.0, 7200.0, 3 * 86400.0)] == [
        "0.00 s",
        "50 ms",
        "1.50 s",
        "30 s",
        "10 min",
        "2 h",
        "3 days",
    ]
    assert one_line("a\tb\x00" + "c" * 50, 10) == "a\\tb\N{REPLACEMENT CHARACTER}cc..."
    assert kept(pb.RetentionSpec(priority=50), 0, 4) == ""
    assert kept(pb.RetentionSpec(priority=90, ttl_s=60), 2, 4) == "pinned 2 of 4, priority 90, ttl 60 s"


def answers(
    uptime_s: float, hit: int, boot: bytes = b"b", requests: int = 0
) -> tuple[pb.StatusReply, pb.ReceiptsReply]:
    status = pb.StatusReply(boot_id=boot, uptime_s=uptime_s, package_version="1")
    status.counters.hit_tokens["dram"] = hit
    status.counters.miss_tokens["evicted"] = hit // 2
    status.tiers.add(name="dram", used_bytes=1 << 20, capacity_bytes=4 << 20)
    return status, pb.ReceiptsReply(total=requests)


def test_rates_are_what_came_between_two_answers_of_one_start() -> None:
    frame = Frame.between(answers(10.0, 1000), answers(12.0, 5000, requests=8), "unix:/x")
    assert (frame.seconds, frame.requests, frame.hit, frame.missed) == (2.0, 4.0, {"dram": 2000.0}, {"evicted": 1000.0})
    console = Console(width=160)
    with console.capture() as shown:
        console.print(Group(*frame_tables(frame)))
    for words in ("4.0 requests/s", "2,000 tokens/s hit", "66.7% of what was asked for", "evicted", "1,000", "1.0 MiB"):
        assert words in shown.get()
    assert frame_json(frame)["hit_tokens_per_s"] == {"dram": 2000.0}


def test_a_sidecar_that_has_started_anew_has_no_rates_yet() -> None:
    frame = Frame.between(answers(100.0, 5000), answers(1.0, 10, boot=b"c"), "unix:/x", "no sidecar answers")
    assert (frame.seconds, frame.requests, frame.hit) == (0.0, 0.0, {})
    console = Console(width=160)
    with console.capture() as shown:
        console.print(Group(*frame_tables(frame)))
    assert "no sidecar answers; what follows is the last that was known" in shown.get()
