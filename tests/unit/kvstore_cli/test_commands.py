"""The commands as a user runs them, against a store with prompts of two tails on one head."""

import json

import numpy as np
import pytest
from kvterrace.kvstore.types import Miss, Receipt

pytestmark = pytest.mark.unit


@pytest.fixture
async def session(node):
    """Three prompts: 1 2 3 4 5, 1 2 6 7 8 and 20 21 22 23, a block a number."""
    made = node.open(label="tiny")
    for ids in ((1, 2, 3, 4, 5), (1, 2, 6, 7, 8), (20, 21, 22, 23)):
        await node.saved(made, node.tokens(*ids))
    return made


def token_file(path, *ids: int):
    path.write_text(" ".join(map(str, np.repeat(ids, 4).tolist())))
    return path


async def test_ls_shows_namespaces_then_prefixes_by_their_keys(kvterrace, session, node):
    code, out, _ = await kvterrace("ls")
    assert code == 0
    assert "tiny" in out
    assert "12 (48.0 KiB)" in out
    every = await kvterrace.json("ls", "tiny", "--sort", "tokens")
    assert every["spaces"][0]["tier_blocks"] == {"dram": 12, "nvme": 12}
    for row in every["prefixes"]:
        assert row["key"][:12] in out
    assert [row["prefix_tokens"] for row in every["prefixes"]] == [20, 20, 16, 8]
    code, out, _ = await kvterrace("ls", session.fingerprint.hex()[:8], "--limit", 1)
    assert "1 of 4 prefixes" in out
    code, _, err = await kvterrace("ls", "nobody")
    assert (code, err) == (2, "kvterrace ls: --namespace: there is no 'nobody'; there are tiny\n")


async def test_a_label_that_several_namespaces_have_is_no_name(kvterrace, session, node):
    node.open(b"weights-1", label="tiny")
    code, _, err = await kvterrace("clear", "--namespace", "tiny")
    assert code == 2
    assert "2 namespaces are called 'tiny': give one of" in err
    assert session.fingerprint.hex()[:12] in err
    assert (await kvterrace.json("clear", "--namespace", session.fingerprint.hex()[:12]))["blocks"] == 12


async def test_show_tells_one_prefix_and_what_hangs_below(kvterrace, session):
    rows = (await kvterrace.json("ls"))["prefixes"]
    head = next(row for row in rows if row["children"])
    shown = await kvterrace.json("show", head["key"][:8])
    assert (shown["blocks"], shown["below_blocks"], len(shown["below"])) == (2, 6, 2)
    code, out, _ = await kvterrace("show", head["key"][:10])
    assert code == 0
    for words in (head["key"], "0 to 8 of the prompt, in 2 blocks", "6 blocks in 2 branches", "1 1 1 1 2 2 2 2"):
        assert words in out
    tail = next(row for row in rows if row["first_block"])
    assert "8 to 20 of the prompt, in 3 blocks" in (await kvterrace("show", tail["key"]))[1]
    code, _, err = await kvterrace("show", "00000000")
    assert (code, err) == (2, "kvterrace show: no stored block's key begins with 00000000\n")
    assert (await kvterrace("show", "abc"))[0] == 2


async def test_a_prefix_of_the_list_is_pinned_and_cleared_by_its_first_digits(kvterrace, session, node, tmp_path):
    rows = (await kvterrace.json("ls"))["prefixes"]
    head = next(row for row in rows if row["children"])["key"]
    tail = next(row for row in rows if row["first_block"])["key"]
    assert (await kvterrace("pin", "--prefix", head[:8], "--below", "--dry-run"))[1] == "would pin 8 blocks\n"
    assert node.store.stats().tiers[0].pinned_blocks == 0
    assert (await kvterrace("pin", "--prefix", tail[:8]))[1] == "pinned 5 blocks\n"
    assert (await kvterrace("priority", 90, "--namespace", "tiny"))[1] == "set the priority of 12 blocks\n"
    assert (await kvterrace("ttl", 60, "--prefix", head))[1] == "set the ttl of 2 blocks\n"
    (row,) = [row for row in (await kvterrace.json("ls"))["prefixes"] if row["key"] == head]
    assert row["retention"] == {"priority": 90, "ttl_s": 60.0, "pinned": True}
    assert "pinned, priority 90, ttl 60 s" in (await kvterrace("show", head))[1]
    told = await kvterrace("clear", "--prefix", tail[:8], "--dry-run")
    assert told[1] == "would drop 3 blocks (36.0 KiB)\n"
    assert (await kvterrace("clear", "--prefix", tail[:8]))[1] == "dropped 3 blocks (36.0 KiB)\n"
    file = token_file(tmp_path / "ids", 1)
    assert (await kvterrace.json("clear", "--namespace", "tiny", "--tokens", file)) == {
        "blocks": 5,
        "bytes": 5 * 3 * 4096,
        "fingerprint": session.fingerprint.hex(),
        "dry_run": False,
    }
    assert len((await kvterrace.json("ls"))["prefixes"]) == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["pin"], "say which blocks"),
        (["pin", "--tokens", "x", "--tenant", "a"], "--tokens needs --namespace"),
        (["pin", "--prefix", "12345678", "--tenant", "nobody"], "tenant"),
        (["clear", "--tokens", "x"], "--tokens needs --namespace"),
        (["clear", "--namespace", "tiny", "--tokens", "/absent"], "--tokens: /absent cannot be read"),
        (["clear", "--prefix", "123456789"], "an even number of its hexadecimal digits"),
        (["clear", "--prefix", "00000000"], "no block's key begins with 00000000"),
        (["clear", "--namespace", "tiny", "--tenant", "a"], "tenant: not together with a fingerprint"),
        (["priority", "101", "--namespace", "tiny"], "priority: must be"),
        (["why"], "say what to explain"),
        (["why", "no-such-id"], "no receipt of 'no-such-id'"),
        (["why", "--prompt", "x"], "--prompt needs --engine URL, or --tokenizer FILE"),
        (["why", "--prompt", "/absent", "--engine", "http://127.0.0.1:9"], "--prompt: /absent cannot be read"),
        (["why", "--prompt", "x", "--engine", "nowhere"], "--engine: 'nowhere' is not the address of an engine"),
        (["why", "--tokens", "x", "--tokenizer", "/absent"], "--tokenizer: /absent cannot be read"),
        (["warm", "/absent"], "/absent cannot be read"),
        (["lint", "--namespace", "nobody"], "there is no 'nobody'"),
    ],
)
async def test_a_users_mistake_is_one_line_and_code_2(kvterrace, session, node, line, words):
    code, out, err = await kvterrace(*line)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith(f"kvterrace {line[0]}: ")
    assert err.count("\n") == 1
    assert node.store.stats().tiers[0].blocks == 12


async def test_nobody_at_the_address_is_code_1(kvterrace):
    kvterrace.address += "-nobody"
    for line in (
        ["ls"],
        ["show", "12345678"],
        ["why", "id"],
        ["lint"],
        ["top", "--once"],
        ["clear", "--namespace", "x"],
    ):
        code, _, err = await kvterrace(*line)
        assert code == 1
        assert "no sidecar answers at" in err
        assert err.count("\n") == 1


async def test_why_explains_a_request_that_was_served(kvterrace, session):
    miss = Miss("evicted", token=16, tier="nvme", gone_s=600.0, kept_s=7200.0)
    session.served(Receipt("chatcmpl-1", {"dram": 16, "computed": 4}, miss, ttft_s=0.5, queue_wait_s=0.1, saved_s=-0.2))
    code, out, _ = await kvterrace("why", "chatcmpl-1")
    assert code == 0
    assert out.splitlines() == [
        "Request chatcmpl-1 by test, tiny.",
        "Of 20 prompt tokens, 16 came from DRAM and 4 were computed.",
        "The first token came 0.50 s after the request, of which 0.10 s in the queue.",
        "Loading took about 0.20 s longer than computing would have.",
        "The block at token 16 was stored once; it left NVMe 10 min ago, after 2 h there, to make room.",
        "More room would have kept it, or a pin (`kvterrace pin`), or a higher priority (`kvterrace priority`).",
    ]
    (said,) = (await kvterrace.json("why", "chatcmpl-1"))["receipts"]
    assert (said["miss"]["reason"], said["tokens"], said["saved_s"]) == ("evicted", {"dram": 16, "computed": 4}, -0.2)


async def test_why_says_where_a_prompt_breaks_and_marks_what_differs(kvterrace, session, tmp_path):
    file = token_file(tmp_path / "ids", 20, 21, 9, 23)
    code, out, _ = await kvterrace("why", "--tokens", file)
    assert code == 0
    assert "Of 16 prompt tokens, 8 would come from DRAM and 8 would be computed, if it were asked now." in out
    assert "A stored prompt is the same up to token 8, and differs there." in out
    assert "before: 20 20 20 20 21 21 21 21" in out
    assert "yours:  [9 9 9 9" in out
    assert "cached: [22 22 22 22" in out
    said = await kvterrace.json("why", "--tokens", file, "--namespace", "tiny")
    assert (said["prompt_tokens"], said["tokens"], said["break"]["token"]) == (16, {"dram": 8}, 8)
    whole = token_file(tmp_path / "whole", 20, 21, 22, 23)
    assert (await kvterrace.json("why", "--tokens", whole))["miss"] is None
    assert "and all" not in (await kvterrace("why", "--tokens", whole))[1]


async def test_top_prints_one_frame_with_rates_of_one_interval(kvterrace, session):
    session.served(Receipt("chatcmpl-1", {"dram": 16, "computed": 4}, None, ttft_s=0.5))
    code, out, _ = await kvterrace("top", "--once", "--interval", 0.2)
    assert code == 0
    for words in ("1 sessions", "dram", "nvme", "chatcmpl-1", "dram 16", "500 ms", "all found"):
        assert words in out
    frame = await kvterrace.json("top", "--once", "--interval", 0.2)
    assert 0.1 < frame["seconds"] < 5
    assert [tier["name"] for tier in frame["tiers"]] == ["dram", "nvme"]


async def test_warm_brings_up_what_is_only_on_the_disk(kvterrace, session, node, tmp_path):
    node.store._spaces[session.fingerprint].evict(12)
    lines = [{"tokens": np.repeat([1, 2, 3, 4, 5], 4).tolist()}, {"prompt": np.repeat([20, 21], 4).tolist()}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\n")
    said = await kvterrace.json("warm", file)
    assert said == {"prompts": 2, "failed": 0, "next": 2, "tokens": {"brought up": 28}, "error": ""}
    assert node.store.stats().tiers[0].blocks == 7
    assert (await kvterrace("warm", file, "--start", 1))[1] == "warmed 1 prompt; their tokens: 8 in DRAM before\n"
    file.write_text(json.dumps(lines[0]) + "\n" + json.dumps("a text") + "\n" + json.dumps(lines[1]) + "\n")
    code, _, err = await kvterrace("warm", file, "--concurrency", 1)
    assert code == 2
    assert err == (
        "kvterrace warm: 1 prompt failed, first: line 2: a text needs --tokenizer FILE, or --engine URL; "
        "go on with --start 1\n"
    )
    file.write_text("{}\n")
    assert "line 1: has no" in (await kvterrace("warm", file))[2]


async def test_drain_flush_version_and_quota_answer_in_json(kvterrace, session):
    assert await kvterrace.json("flush") == {"done": True, "pending_blocks": 0}
    code, _, err = await kvterrace("quota", "a", "--dram", "1MiB", "--json")
    assert (code, "this store has no tenants" in err or "tenant" in err) == (2, True)
