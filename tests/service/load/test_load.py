"""`kvterrace load` against a server that does exactly what it is told, on a real socket."""

import asyncio
import json
import ssl

import pytest
from kvterrace.kvstore.errors import KvterraceError
from kvterrace.kvstore.load.endpoint import NobodyAnswers
from kvterrace.kvstore.load.page import page
from kvterrace.kvstore.load.report import goodput, notes, phase_json, rates, summary

pytestmark = [pytest.mark.service, pytest.mark.timeout(60)]


async def test_known_timings_are_measured_and_both_phases_told(run, script):
    script.first_s, script.gap_s, script.crlf = 0.05, 0.02, True
    report = await run(slo="ttft=5,itl=5")
    assert list(report.phases) == ["alone", "load"]
    for name, count in (("alone", 2), ("load", 8)):
        tally = report.phases[name]
        assert (tally.sent, tally.ok) == (count, count)
        times = tally.latencies
        assert 0.05 <= times.ttft_s.min_s <= times.ttft_s.at(0.5)
        assert times.itl_s.count == 2 * count
        assert times.e2e_s.min_s >= 0.09
        assert times.tpot_s.mean_s == pytest.approx(times.itl_s.mean_s, rel=0.01)
        assert goodput(tally) == 1.0
        assert tally.tokens.output == 3 * count
    assert rates(report.load).computed_tokens is None  # the endpoint does not say what was cached
    assert report.calibration.told
    assert report.calibration.template_tokens == 10


async def test_alone_there_is_one_request_at_a_time_and_under_load_there_are_many(run, script):
    script.first_s = 0.1
    await run(alone=3, requests=1)
    assert script.most_at_once == 1
    await run(alone=0, requests=8, rate=200.0)
    assert script.most_at_once > 2


async def test_a_stall_counts_for_everybody_who_wanted_something_meanwhile(run, script):
    """Coordinated omission: with room for one, later requests are sent late, and their users have waited."""
    script.first_s = 0.15
    report = await run(alone=0, requests=6, rate=100.0, concurrency=1, slo="ttft=0.3")
    times = report.load.latencies
    assert times.ttft_s.max_s < times.due_ttft_s.max_s
    assert times.due_ttft_s.max_s > 5 * 0.15
    assert goodput(report.load) < 0.5
    assert any("--concurrency" in note for note in notes(report))


async def test_what_would_wait_longer_than_the_timeout_is_not_sent_and_not_forgotten(run, script):
    script.first_s = 0.25
    report = await run(alone=0, requests=12, rate=500.0, concurrency=2, timeout=0.4, slo="e2e=9")
    tally = report.load
    assert tally.unsent > 0
    assert tally.sent + tally.unsent == 12
    assert goodput(tally) == tally.good / 12
    assert phase_json(tally)["requests"]["never_sent"] == tally.unsent


async def test_rejections_timeouts_and_errors_are_told_apart(run, script):
    answers = iter([(429, {"error": {"message": "queue is full"}}), (503, {}), (500, {"error": "broken"})])
    script.refuse = lambda body: next(answers, None) if body["max_tokens"] > 1 else None
    report = await run(alone=0, requests=5)
    assert {name: report.load.statuses[name] for name in ("ok", "rejected", "error")} == {
        "ok": 2, "rejected": 2, "error": 1,
    }  # fmt: skip
    assert set(report.load.errors) == {"HTTP 429: queue is full", "HTTP 503", "HTTP 500: broken"}
    script.cut_after = 2
    assert (await run(alone=0, requests=2)).load.statuses == {"error": 2}
    script.cut_after, script.error_after = None, 2
    assert set((await run(alone=0, requests=2)).load.errors) == {"the engine failed"}


async def test_a_server_that_hangs_ends_in_timeouts(run, script):
    script.gap_s = 30.0  # the first content comes, and then none
    report = await run(alone=0, requests=3, timeout=0.3)
    assert report.load.statuses == {"timeout": 3}
    assert report.load.ok == 0


async def test_cached_tokens_and_receipts_are_summed_by_tier(run, script, words_of):
    seen = set()

    def usage(body):
        text = body["messages"][0]["content"]
        cached = words_of({"prompt": text}) if text in seen and len(body["messages"]) > 1 else 0
        seen.add(text)
        prompt = words_of(body)
        receipt = {"tokens": {"hbm": 0, "dram": cached, "computed": prompt - cached}, "miss_reason": "never_seen"}
        return {
            "prompt_tokens": prompt, "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": cached}, "kvterrace": {**receipt, "saved_s": 0.5},
        }  # fmt: skip

    script.usage = usage
    report = await run(requests=10, alone=3, shared=0.75)
    tokens = report.load.tokens
    assert tokens.tiers == {"hbm": 0, "dram": 8 * 30, "computed": 10 * 40 - 8 * 30}
    assert tokens.cached == 8 * 30  # each of two groups is new once: no phase hits what another sent
    assert (tokens.unequal, tokens.saved_s, tokens.reasons) == (0, 5.0, {"never_seen": 10})
    assert report.phases["alone"].tokens.tiers["dram"] == 2 * 30
    assert report.load.latencies.hit_ttft_s.count == 8
    html = page(report)
    assert "dram 240 (60.0%)" in html
    assert json.loads(json.dumps(report.to_json()))["phases"]["load"]["receipts"]["tokens_by_tier"]["dram"] == 240


async def test_an_endpoint_without_token_counts_is_measured_all_the_same(run, script):
    def refuse(body):
        return (400, {"error": {"message": "unknown field stream_options"}}) if "stream_options" in body else None

    script.refuse = refuse
    report = await run()
    assert report.load.ok == 8
    assert report.load.tokens.output == 24  # contents
    assert any("does not tell token counts" in note for note in notes(report))


async def test_prompts_have_the_tokens_asked_for_by_the_endpoints_own_count(run, script, words_of):
    script.usage = lambda body: {"prompt_tokens": 7 + 2 * words_of(body), "completion_tokens": 1}
    report = await run(prompt_tokens=200, alone=0)
    assert report.calibration.tokens_per_word == 2.0
    assert report.load.tokens.prompt / 8 == pytest.approx(207, abs=3)


async def test_conversations_carry_the_endpoints_own_answers(run, script):
    report = await run(scenario="conversation", requests=9, alone=0, rate=60.0)
    longest = max((body["messages"] for body in script.bodies), key=len)
    assert [each["content"] for each in longest if each["role"] == "assistant"] == [" word word word"] * 2
    assert set(report.load.kinds) == {"first turn", "later turn"}
    assert report.load.ok >= 9


async def test_a_trace_is_replayed_at_its_times_and_lengths(run, script, tmp_path):
    rows = [
        {"timestamp": 200 * n, "input_length": 24, "output_length": n + 1, "hash_ids": [1, 2 + n], "block_tokens": 16}
        for n in range(4)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, [*rows, {**rows[0], "input_length": 200_000, "timestamp": 700}])))
    report = await run(trace=path, speed=4.0, alone=1, requests=None)
    assert report.load.ok == 4
    assert 0.14 <= report.load.due_until_s - report.load.start_s <= 0.16
    assert report.left_out == 1
    sent = [body for body in script.bodies if body["max_tokens"] > 1]
    assert {len(body["messages"][0]["content"].split()) for body in sent} == {24}
    assert len({tuple(body["messages"][0]["content"].split()[:16]) for body in script.bodies[-4:]}) == 1
    assert any("left out" in note for note in notes(report))


async def test_completions_get_one_prompt(run, script):
    report = await run(api="completions")
    assert report.load.ok == 8
    assert all("messages" not in body and "\n\n" in body["prompt"] for body in script.bodies[2:])


async def test_the_key_is_shown_and_asked_for(run, script):
    script.key = "sk-secret"
    with pytest.raises(KvterraceError, match="--api-key or OPENAI_API_KEY"):
        await run()
    report = await run(key="sk-secret")
    assert report.load.ok == 8
    assert "sk-secret" not in json.dumps(report.to_json())


async def test_who_cannot_be_measured_is_told_in_one_line(run, script):
    with pytest.raises(NobodyAnswers, match=r"nobody answers at http://127.0.0.1:9/v1: connect"):
        await run(at="http://127.0.0.1:9")
    with pytest.raises(KvterraceError, match=r"--model: 'other' is not served .* there is scripted"):
        await run(model="other")
    with pytest.raises(KvterraceError, match=r"--prompt-tokens: 99999 .* 100000 tokens"):
        await run(prompt_tokens=99_999)
    script.refuse = lambda body: (400, {"error": {"message": "no such thing"}})
    with pytest.raises(KvterraceError, match="HTTP 400: no such thing"):
        await run()
    script.models = []
    with pytest.raises(KvterraceError, match="lists no model: give --model"):
        await run()


async def test_stopped_it_tells_what_was_measured(run, script):
    script.first_s = 0.05
    stop, phases = asyncio.Event(), set()

    def watch(runner):
        phases.add(runner.phase)
        if runner.phase == "load" and runner.tally.ok > 3:
            script.gap_s = 60.0
            stop.set()

    report = await run(requests=None, duration=600.0, stop=stop, watch=watch)
    assert report.stopped
    assert report.load.ok > 3
    assert report.load.asked == report.load.ok  # those under way count for nothing
    assert report.load.sent == report.load.ok + report.load.statuses["cut"]
    assert any("Stopped before its end" in note for note in notes(report))
    assert "load" in phases


async def test_stopped_before_or_within_the_first_phase_it_says_so(run, script):
    script.first_s, stop = 60.0, asyncio.Event()
    asyncio.get_running_loop().call_later(0.3, stop.set)
    with pytest.raises(NobodyAnswers, match="stopped before anything was measured"):
        await run(stop=stop)
    script.first_s, stop = 0.01, asyncio.Event()

    def watch(runner):
        if runner.tally.ok:
            script.gap_s = 60.0
            stop.set()

    report = await run(alone=500, stop=stop, watch=watch)
    assert list(report.phases) == ["alone"]
    assert report.stopped
    assert any("one at a time" in line for line in summary(report))
    assert "time to first token" in page(report)


async def test_an_endpoint_with_a_certificate_of_its_own_needs_its_ca(run, script, serving, authority):
    cert, key = authority.issue("server")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    async with serving(script, tls=server) as at:
        with pytest.raises(NobodyAnswers, match="certificate is not believed; give its CA by --tls-ca"):
            await run(at=at)
        report = await run(at=at, tls=ssl.create_default_context(cafile=str(authority.file)))
        assert report.load.ok == 8
