"""A real server process on the demo model, used through the official `openai` client as a user would."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import httpx
import openai
import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
MODEL = Path(os.environ.get("KVTERRACE_MODEL") or ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")
READY_S = 120
QUESTION = [{"role": "user", "content": "Name three colours of the rainbow, in one short line."}]


class Server(NamedTuple):
    url: str
    process: subprocess.Popen

    def client(self, **options) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", **{"max_retries": 0, **options})

    def engine_stats(self) -> dict:
        return httpx.get(f"{self.url}/status.json", trust_env=False).json()["engine"]

    def settles(self, **expected) -> None:
        """Within a few steps the engine's numbers are these."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            stats = self.engine_stats()
            if all(stats[name] == value for name, value in expected.items()):
                return
            time.sleep(0.02)
        raise AssertionError(f"expected {expected}, got { {name: stats[name] for name in expected} }")


def start(stderr: BinaryIO, *flags: str) -> subprocess.Popen:
    assert MODEL.is_file(), f"the demo model is missing: {MODEL}; `make setup` fetches it"
    arguments = ["engine", str(MODEL), "--served-model-name", "demo", "--kv-pool", "256MiB", *flags]
    return subprocess.Popen(
        [sys.executable, "-m", "kvterrace.kvstore", *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        env={**os.environ, "PYTHONSAFEPATH": "1"},
    )


@contextlib.contextmanager
def server(log: Path, *flags: str) -> Iterator[Server]:
    with log.open("wb") as stderr:
        process = start(stderr, "--port", "0", *flags)
        try:
            line = process.stdout.readline().decode()
            assert " is ready at http://127.0.0.1:" in line, log.read_text()
            yield Server(line.split()[-1].removesuffix("/v1"), process)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            finally:
                process.kill()
                process.stdout.close()
    assert process.returncode == 0, log.read_text()
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> Iterator[Server]:
    with server(
        tmp_path_factory.mktemp("engine") / "log", "--kv-connector", "embedded", "--kv-dram", "64MiB"
    ) as running:
        yield running


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Iterator[Server]:
    """One sequence at a time, two more may wait, for no longer than a second."""
    flags = ("--kv-connector", "none", "--max-running", "1", "--max-queue", "2", "--max-queue-wait", "1")
    with server(tmp_path_factory.mktemp("tiny") / "log", *flags) as running:
        yield running


def test_a_chat_and_its_repetition_from_the_cache(demo):
    client = demo.client()
    content = "Here is a list of facts. " + " ".join(f"Fact {i} is that {i} times two is {2 * i}." for i in range(20))
    messages = [{"role": "system", "content": content}, *QUESTION]
    first = client.chat.completions.create(model="demo", messages=messages, max_tokens=8, temperature=0)
    again = client.chat.completions.create(model="demo", messages=messages, max_tokens=8, temperature=0)
    assert first.choices[0].message.content
    assert again.choices[0].message.content == first.choices[0].message.content
    assert first.choices[0].finish_reason in ("length", "stop")
    assert again.usage.prompt_tokens == first.usage.prompt_tokens > 300
    assert again.usage.prompt_tokens_details.cached_tokens >= again.usage.prompt_tokens - 16
    for answer in (first, again):
        receipt = answer.usage.kvterrace
        assert sum(receipt["tokens"].values()) == answer.usage.prompt_tokens
        assert (
            answer.usage.prompt_tokens - receipt["tokens"]["computed"]
            == answer.usage.prompt_tokens_details.cached_tokens
        )
    assert first.usage.kvterrace["miss_reason"] == "never_seen"


def test_hbm_cleared_the_embedded_store_brings_it_back(demo):
    client = demo.client()
    prompt = "The quick brown fox jumps over the lazy dog. " * 20
    first = client.completions.create(model="demo", prompt=prompt, max_tokens=4, temperature=0)
    until = time.monotonic() + 10
    tokens = {"dram": 0}
    while tokens["dram"] == 0 and time.monotonic() < until:  # saving goes on behind the answer
        assert httpx.post(f"{demo.url}/admin/hbm/clear", trust_env=False).json()["dropped_blocks"] > 0
        again = client.completions.create(model="demo", prompt=prompt, max_tokens=4, temperature=0)
        tokens = again.usage.kvterrace["tokens"]
    assert tokens["dram"] > 0
    assert tokens["hbm"] == 0
    assert again.choices[0].text == first.choices[0].text


def test_streams_say_what_whole_answers_say(demo):
    client = demo.client()
    chat = {"model": "demo", "messages": QUESTION, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**chat)
    chunks = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert sum(chunks[-1].usage.kvterrace["tokens"].values()) == whole.usage.prompt_tokens
    completion = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**completion)
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**completion, stream=True))
    assert streamed == whole.choices[0].text


def test_seeds_reproduce_and_samples_differ(demo):
    client = demo.client()
    call = {"model": "demo", "messages": QUESTION, "max_tokens": 16, "temperature": 1.5, "n": 2}
    first, again = (client.chat.completions.create(**call, seed=7) for _ in range(2))
    other = client.chat.completions.create(**call, seed=8)
    texts = [[choice.message.content for choice in answer.choices] for answer in (first, again, other)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1]
    assert [choice.index for choice in first.choices] == [0, 1]
    assert first.usage.completion_tokens <= 32


def test_stop_ends_before_the_string_and_length_after_max_tokens(demo):
    client = demo.client()
    call = {"model": "demo", "prompt": "1, 2, 3, 4, 5, 6, 7,", "temperature": 0, "max_tokens": 30}
    free = client.completions.create(**call)
    assert (free.choices[0].finish_reason, free.usage.completion_tokens) == ("length", 30)
    assert ", 11" in free.choices[0].text
    stopped = client.completions.create(**call, stop=[", 11"])
    assert stopped.choices[0].finish_reason == "stop"
    assert stopped.choices[0].text == free.choices[0].text.split(", 11")[0]


def test_logprobs_are_the_texts(demo):
    client = demo.client()
    call = {"model": "demo", "messages": QUESTION, "max_tokens": 6, "temperature": 0}
    chat = client.chat.completions.create(**call, logprobs=True, top_logprobs=3)
    content = chat.choices[0].logprobs.content
    assert "".join(each.token for each in content) == chat.choices[0].message.content
    assert all(each.top_logprobs[0].logprob == pytest.approx(each.logprob, abs=1e-4) for each in content)  # greedy
    assert all(len(each.top_logprobs) == 3 for each in content)
    text = client.completions.create(model="demo", prompt="Once upon", max_tokens=5, temperature=0, logprobs=2)
    logprobs = text.choices[0].logprobs
    assert "".join(logprobs.tokens) == text.choices[0].text
    assert logprobs.text_offset[0] == 0
    assert all(len(top) == 2 for top in logprobs.top_logprobs)


def test_several_prompts_and_token_ids(demo):
    client = demo.client()
    answer = client.completions.create(model="demo", prompt=["One", "Two"], max_tokens=3, n=2, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == answer.choices[1].text
    assert client.completions.create(model="demo", prompt=[28, 29, 30], max_tokens=3).usage.prompt_tokens == 3


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": "word " * 9_000}]}, "messages", "context_length_exceeded"),
    ],
)
def test_mistakes_are_bad_requests_that_name_the_field(demo, fields, param, code):
    with pytest.raises(openai.BadRequestError) as caught:
        demo.client().chat.completions.create(**{"model": "demo", "messages": QUESTION, **fields})
    assert (caught.value.param, caught.value.code) == (param, code)


def test_models_and_an_unknown_one(demo):
    client = demo.client()
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-4", messages=QUESTION)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(demo, stream):
    client = demo.client(timeout=30.0 if stream else 1.0)
    call = {"model": "demo", "prompt": "Once upon a time", "max_tokens": 4_000, "extra_body": {"ignore_eos": True}}
    if stream:
        with client.completions.create(**call, stream=True) as chunks:
            next(iter(chunks))
            assert demo.engine_stats()["running"] == 1
    else:
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(**call)
    demo.settles(running=0, waiting=0, queued=0)
    stats = demo.engine_stats()
    assert stats["pages_free"] + stats["pages_cached"] == stats["pages"]


def test_a_full_queue_and_a_long_wait_are_rate_limits(tiny):
    client = tiny.client()
    call = {"model": "demo", "prompt": "Once upon a time", "extra_body": {"ignore_eos": True}}
    with client.completions.create(**call, max_tokens=4_000, stream=True) as chunks:
        next(iter(chunks))

        async def crowd() -> list[object]:
            async with openai.AsyncOpenAI(base_url=f"{tiny.url}/v1", api_key="none", max_retries=0) as many:
                calls = [many.completions.create(**call, max_tokens=1) for _ in range(5)]
                return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(crowd())
        assert all(isinstance(result, openai.RateLimitError) for result in results), results
        codes = sorted(str(result.code) for result in results if isinstance(result, openai.RateLimitError))
        assert codes == ["queue_full"] * 3 + ["queue_timeout"] * 2
        assert all(int(r.response.headers["retry-after"]) >= 1 for r in results if isinstance(r, openai.APIStatusError))
    tiny.settles(running=0, queued=0)
    assert client.completions.create(**call, max_tokens=1).usage.completion_tokens == 1


def test_two_hundred_at_once_all_end(demo):
    async def crowd() -> list[openai.types.Completion]:
        limits = httpx.Limits(max_connections=200)
        http = httpx.AsyncClient(limits=limits, timeout=240, trust_env=False)
        async with openai.AsyncOpenAI(
            base_url=f"{demo.url}/v1", api_key="none", max_retries=0, http_client=http
        ) as many:
            calls = [
                many.completions.create(model="demo", prompt=f"Number {i} is", max_tokens=2, temperature=0)
                for i in range(200)
            ]
            return await asyncio.gather(*calls)

    results = asyncio.run(crowd())
    assert all(result.usage.completion_tokens >= 1 for result in results)
    demo.settles(running=0, waiting=0, queued=0)


def test_metrics_say_what_the_receipts_say(demo):
    def read() -> dict[str, float]:
        text = httpx.get(f"{demo.url}/metrics", trust_env=False).text
        return {
            name: float(value) for name, value in (line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        }

    before = read()
    prompt = "Metrics are numbers that somebody looks at when something is wrong. " * 5
    usages = [demo.client().completions.create(model="demo", prompt=prompt, max_tokens=3).usage for _ in range(2)]
    moved = {name: value - before.get(name, 0) for name, value in read().items()}
    for tier in ("hbm", "dram", "nvme", "peer", "computed"):
        expected = sum(usage.kvterrace["tokens"][tier] for usage in usages)
        assert moved[f'kvterrace_prompt_tokens_total{{tier="{tier}"}}'] == expected
    assert moved['kvterrace_prompt_tokens_total{tier="hbm"}'] > 0
    first_tokens = [moved[f'kvterrace_engine_ttft_seconds_count{{cache="{kind}"}}'] for kind in ("miss", "hit")]
    assert first_tokens == [1, 1]
    assert moved["kvterrace_engine_generated_tokens_total"] == sum(usage.completion_tokens for usage in usages)
    assert read()['kvterrace_engine_connector_connected{kind="embedded"}'] == 1


@pytest.mark.parametrize("grace_s", [60, 0.2])
def test_sigterm_lets_streams_end_within_the_grace(tmp_path, grace_s):
    flags = ("--kv-connector", "none", "--grace", str(grace_s))
    with server(tmp_path / "log", *flags) as running:
        call = {"model": "demo", "prompt": "Once upon a time", "extra_body": {"ignore_eos": True}, "stream": True}
        length = 40 if grace_s > 1 else 4_000
        with running.client().completions.create(**call, max_tokens=length) as chunks:
            next(iter(chunks))
            running.process.send_signal(signal.SIGTERM)
            if grace_s > 1:
                reasons = [chunk.choices[0].finish_reason for chunk in chunks]
                assert reasons[-1] == "length"
            else:
                with pytest.raises(openai.APIError, match="stopping"):
                    list(chunks)
        running.process.wait(30)  # the fixture checks its exit code


def test_it_answers_while_loading_and_can_be_stopped_then(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("wb") as stderr, httpx.Client(base_url=url, trust_env=False, timeout=20) as http:
        process = start(stderr, "--port", str(port), "--kv-connector", "none")
        try:
            until = time.monotonic() + READY_S
            while time.monotonic() < until:
                with contextlib.suppress(httpx.ConnectError):
                    health = http.get("/health")
                    break
                time.sleep(0.02)
            assert health.status_code == 200
            ready = http.get("/ready")
            assert (ready.status_code, ready.json()["phase"]) == (503, "loading")
            with pytest.raises(openai.InternalServerError) as caught:
                Server(url, process).client().chat.completions.create(model="demo", messages=QUESTION)
            assert (caught.value.status_code, caught.value.code) == (503, "loading")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stdout.read() == b""  # it never said that it was ready
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
    assert "Traceback" not in (tmp_path / "log").read_text()
