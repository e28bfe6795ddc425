"""One request, timed at the client: which chunk is the first token, and what each way to fail counts as."""

import asyncio

import aiohttp
import pytest
from kvterrace.kvstore.load.exchange import exchange, usage_of
from kvterrace.kvstore.load.outcome import Outcome, Status, Usage
from kvterrace.kvstore.load.talks import Prompt

pytestmark = pytest.mark.unit

PROMPT = Prompt("chat", (("system", "s"), ("user", "hello")), 8)


@pytest.fixture
def ask(clock, make_endpoint):
    async def run(chunks, *, keep_text=False, due_s=99.0, **options):
        endpoint = make_endpoint(chunks, **options)
        outcome = Outcome("chat", due_s, clock())
        await exchange(endpoint, PROMPT, outcome, clock=clock, timeout_s=5.0, keep_text=keep_text)
        return outcome

    return run


async def test_only_contents_are_timed(ask, sse):
    usage = sse.event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 4})
    outcome = await ask(
        [(0.1, sse.role), (0.4, sse.content("a")), (0.2, sse.content("b")), (0.3, sse.content("c")),
         (1.0, sse.end), (1.0, usage), (1.0, sse.done)]
    )  # fmt: skip
    assert outcome.status is Status.OK
    assert outcome.ttft_s == pytest.approx(0.5)
    assert list(outcome.gaps_s) == pytest.approx([0.2, 0.3])
    assert outcome.tpot_s == pytest.approx(0.5 / 3)  # by tokens, not by contents
    assert outcome.end_s - outcome.sent_s == pytest.approx(4.0)
    assert outcome.usage == Usage(9, 4)


async def test_contents_that_are_read_together_have_no_time_between(ask, sse):
    outcome = await ask([(0.5, sse.role + sse.content("a") + sse.content("b")), (0.1, sse.end)])
    assert list(outcome.gaps_s) == [0.0]
    assert outcome.output_tokens == 2  # counted, as the endpoint does not tell


async def test_reasoning_and_calls_of_tools_are_contents(ask, sse):
    thought = sse.event(choices=[{"delta": {"reasoning_content": "hm", "content": None}}])
    call = sse.event(choices=[{"delta": {"tool_calls": [{"index": 0}]}}])
    outcome = await ask([(0.5, thought), (0.25, call), (0.0, sse.end)])
    assert (outcome.ttft_s, list(outcome.gaps_s)) == (0.5, [0.25])


async def test_a_conversation_gets_the_answers_text_and_others_do_not_keep_it(ask, sse):
    chunks = [(0.0, sse.content("a")), (0.0, sse.content("b")), (0.0, sse.done)]
    assert (await ask(chunks, keep_text=True)).text == "ab"
    assert (await ask(chunks)).text == ""


@pytest.mark.parametrize(("status", "counts_as"), [(429, Status.REJECTED), (503, Status.REJECTED), (400, Status.ERROR)])
async def test_a_refusal_counts_by_its_status_and_tells_its_message(ask, status, counts_as):
    outcome = await ask([(0.1, b'{"error": {"message": "too\\nmany"}}')], status=status)
    assert (outcome.status, outcome.detail) == (counts_as, f"HTTP {status}: too many")
    assert outcome.first_s is None


async def test_an_error_within_the_stream_is_no_success(ask, sse):
    busy = sse.event(error={"message": "waited too long", "type": "rate_limit_error"})
    outcome = await ask([(0.1, sse.content("a")), (0.1, busy), (0.0, sse.done)])
    assert (outcome.status, outcome.detail) == (Status.REJECTED, "waited too long")
    broken = sse.event(error={"message": "the engine failed", "type": "server_error"})
    assert (await ask([(0.1, broken)])).status is Status.ERROR


@pytest.mark.parametrize(
    ("chunks", "detail"),
    [
        ([(0.1, b"data: {\n\n")], "an event is not JSON"),
        ([(0.1, b"data: 7\n\n")], "an event is not a JSON object"),
        ([(0.1, b"")], "the stream was cut off"),
        ([(0.1, aiohttp.ServerDisconnectedError())], "the connection was closed before an answer"),
        ([(0.1, ConnectionResetError("reset"))], "reset"),
    ],
)
async def test_a_stream_that_breaks_is_an_error_with_a_name(ask, chunks, detail):
    outcome = await ask(chunks)
    assert (outcome.status, outcome.detail) == (Status.ERROR, detail)
    assert outcome.end_s == pytest.approx(100.1)


async def test_an_answer_that_is_no_stream_is_told(ask):
    outcome = await ask([(0.1, b"{}")], content_type="application/json")
    assert outcome.detail == "the answer is application/json, not a stream of events"


async def test_cancelled_it_is_marked_as_cut(clock, make_endpoint):
    endpoint = make_endpoint([(0.1, asyncio.CancelledError())])
    outcome = Outcome("chat", 100.0, 100.0)
    with pytest.raises(asyncio.CancelledError):
        await exchange(endpoint, PROMPT, outcome, clock=clock, timeout_s=5.0)
    assert (outcome.status, outcome.end_s) == (Status.CUT, 100.1)


async def test_what_is_posted(ask, make_endpoint, sse):
    body = make_endpoint([], ignore_eos=True).body(PROMPT)
    assert body["messages"] == [{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]
    assert body["stream_options"] == {"include_usage": True}
    assert (body["max_tokens"], body["ignore_eos"], body["model"]) == (8, True, "m")
    body = make_endpoint([], kind="completions", usage=False).body(PROMPT)
    assert body["prompt"] == "s\n\nhello"
    assert not {"messages", "stream_options", "ignore_eos"} & set(body)


def test_usage_of_our_engine_and_of_others():
    told = {
        "prompt_tokens": 100, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 80},
        "kvterrace": {"tokens": {"hbm": 16, "dram": 64, "computed": 20}, "miss_reason": "evicted", "saved_s": 0.5},
    }  # fmt: skip
    assert usage_of(told) == Usage(100, 5, 80, {"hbm": 16, "dram": 64, "computed": 20}, "evicted", 0.5)
    assert usage_of({"prompt_tokens": 1, "completion_tokens": 2, "prompt_tokens_details": None}) == Usage(1, 2)
    assert usage_of({"prompt_tokens": True, "completion_tokens": 2}) is None
    assert usage_of({"prompt_tokens": 1, "completion_tokens": 1, "kvterrace": [1]}) == Usage(1, 1)
