"""EngineLoop with a small random Llama: threads, wake-ups, bounds, shutdown."""

import threading
import time

import pytest
import torch
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.loop import EngineLoop, EngineStopped
from kvterrace.engine.model import LlamaModel, LoadedModel, ModelConfig, RopeConfig
from kvterrace.engine.model.linear import Linear
from kvterrace.engine.model.llama import Layer, Weights
from kvterrace.engine.request import QueueFull, Request, RequestRefused, SamplingParams

pytestmark = pytest.mark.unit

SIZES = ModelConfig(
    family="llama",
    layers=2,
    hidden=32,
    intermediate=48,
    heads=4,
    kv_heads=2,
    head_dim=8,
    vocab=97,
    max_position=512,
    norm_eps=1e-5,
    rope=RopeConfig(10000.0),
)


def random_model():
    generator = torch.Generator().manual_seed(11)

    def normal(*shape):
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5 * 1.5

    def layer():
        size = SIZES.hidden
        qkv = (SIZES.heads + 2 * SIZES.kv_heads) * SIZES.head_dim
        return Layer(
            torch.ones(size),
            Linear(normal(qkv, size)),
            Linear(normal(size, SIZES.heads * SIZES.head_dim)),
            torch.ones(size),
            Linear(normal(2 * SIZES.intermediate, size)),
            Linear(normal(size, SIZES.intermediate)),
        )

    embedding = normal(SIZES.vocab, SIZES.hidden) * 4
    layers = tuple(layer() for _ in range(SIZES.layers))
    return LlamaModel(
        SIZES, Weights(embedding, layers, torch.ones(SIZES.hidden), Linear(normal(SIZES.vocab, SIZES.hidden) * 3))
    )


class Waiter:
    """A callback to wait on."""

    def __init__(self):
        self.outputs, self.done, self.first = [], threading.Event(), threading.Event()
        self.on_first = lambda: None
        self.left = 1

    def __call__(self, output):
        self.outputs.append(output)
        if not self.first.is_set():
            self.first.set()
            self.on_first()
        if output.finish_reason:
            self.left -= 1
            if not self.left:
                self.done.set()

    def tokens(self, index=0):
        assert self.done.wait(60), "no end"
        return [token for output in self.outputs if output.index == index for token in output.token_ids]

    @property
    def reason(self):
        assert self.done.wait(60), "no end"
        return self.outputs[-1].finish_reason


@pytest.fixture
def start(letters):
    loops = []

    def build(factory=None, *, started=True, **config):
        config = {"model": "none", "kv_connector": "none", "block_tokens": 4, "kv_pool_pages": 64} | config
        loaded = LoadedModel(SIZES, random_model(), letters, bytes(32), "tiny")
        loop = EngineLoop(loaded, EngineConfig(**config), factory)
        loops.append(loop)
        if started:
            loop.start()
        return loop

    yield build
    for loop in loops:
        loop.close()
        assert not loop.alive


def ask(loop, prompt, name, waiter=None, priority="interactive", **params):
    waiter = waiter or Waiter()
    params = {"temperature": 0.0, "max_tokens": 8, "ignore_eos": True} | params
    waiter.left = params.get("n", 1)
    loop.submit(Request(name, prompt, SamplingParams(**params), priority), waiter)
    return waiter


def test_a_real_model_gives_the_same_tokens_on_every_path(start, store, prompt):
    prompts = [prompt(1, 40) + prompt(seed, 3 + 5 * seed) for seed in range(2, 8)]
    plain = start(prefix_cache=False)
    expected = [ask(plain, tokens, "x").tokens() for tokens in prompts]
    assert len({tuple(tokens) for tokens in expected}) > 1

    connector = store()

    def factory(tensor, on_event):
        connector.tensor, connector._on_event = tensor, on_event
        return connector

    loop = start(factory, max_step_tokens=33)
    cold = [ask(loop, tokens, f"cold{i}") for i, tokens in enumerate(prompts)]
    assert [waiter.tokens() for waiter in cold] == expected
    warm = [ask(loop, tokens, f"warm{i}") for i, tokens in enumerate(prompts)]
    assert [waiter.tokens() for waiter in warm] == expected
    assert all(waiter.outputs[-1].receipt.tokens["hbm"] >= 40 for waiter in warm)
    wait_until(lambda: loop.clear_hbm() == 0 and loop.stats().pages_free == 64)
    loaded = [ask(loop, tokens, f"loaded{i}") for i, tokens in enumerate(prompts)]
    assert [waiter.tokens() for waiter in loaded] == expected
    assert sum(waiter.outputs[-1].receipt.tokens["dram"] for waiter in loaded) >= 40
    crowded = start(kv_pool_pages=26)
    waiters = [ask(crowded, tokens, f"{i}", max_tokens=8) for i, tokens in enumerate(prompts)]
    assert [waiter.tokens() for waiter in waiters] == expected
    loop.check()
    crowded.check()


def wait_until(condition, limit_s=30.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def test_an_idle_engine_sleeps(start, prompt):
    loop = start()
    ask(loop, prompt(1, 5), "a").tokens()
    calls = []
    step = loop._core.step
    loop._core.step = lambda: (calls.append(1), step())[1]
    time.sleep(0.2)
    assert len(calls) <= 1
    assert ask(loop, prompt(2, 5), "b").reason == "length"  # and wakes up


def test_a_connector_event_wakes_the_engine(start, store, prompt):
    connector = store()
    connector.withheld = {"offer"}

    def factory(tensor, on_event):
        connector.tensor, connector._on_event = tensor, on_event
        return connector

    loop = start(factory, kv_fetch_deadline_s=30)
    waiter = ask(loop, prompt(1, 20), "a")
    assert not waiter.first.wait(0.1)
    began = time.monotonic()
    connector.release()
    assert waiter.reason == "length"
    assert time.monotonic() - began < 10  # not the watchdog's 31 s


def test_the_queue_is_bounded_and_says_when_to_come_back(start, prompt):
    loop = start(started=False, max_queue=3)
    with pytest.raises(EngineStopped):
        ask(loop, prompt(1, 5), "early")
    entered, gate = threading.Event(), threading.Event()
    busy = Waiter()
    busy.on_first = lambda: (entered.set(), gate.wait(30))
    loop.start()
    ask(loop, prompt(1, 5), "busy", busy)
    assert entered.wait(30)
    waiters = [ask(loop, prompt(i, 5), f"r{i}") for i in range(3)]
    with pytest.raises(QueueFull) as full:
        ask(loop, prompt(9, 5), "over")
    assert 1 <= full.value.retry_after_s <= 60
    assert (loop.stats().queued, loop.stats().queued_tokens, loop.stats().rejected) == (3, 15, 1)
    gate.set()
    assert all(waiter.reason == "length" for waiter in waiters)
    assert ask(loop, prompt(9, 5), "over").reason == "length"
    assert (loop.stats().queued, loop.stats().queued_tokens) == (0, 0)


def test_cancel_from_another_thread_ends_the_request_at_once(start, prompt):
    loop = start()
    waiter = Waiter()
    ask(loop, prompt(1, 5), "a", waiter, max_tokens=400, n=2)
    assert waiter.first.wait(30)
    loop.cancel("a")
    loop.cancel("nobody")
    assert waiter.reason == "cancelled"
    assert len(waiter.outputs) < 700
    loop.check()
    assert loop.stats().running == 0


def test_an_id_in_flight_is_refused_and_can_be_used_again(start, prompt):
    loop = start()
    waiter = ask(loop, prompt(1, 5), "a", max_tokens=400)
    with pytest.raises(RequestRefused, match="in flight"):
        ask(loop, prompt(1, 5), "a")
    loop.cancel("a")
    assert waiter.reason == "cancelled"
    assert ask(loop, prompt(1, 5), "a").reason == "length"


def test_close_waits_for_requests_as_long_as_it_may_then_cancels(start, prompt):
    loop = start()
    short = ask(loop, prompt(1, 5), "a", max_tokens=5)
    loop.close(drain_s=30)
    assert short.reason == "length"
    with pytest.raises(EngineStopped):
        ask(loop, prompt(1, 5), "b")
    other = start()
    long = ask(other, prompt(1, 5), "a", max_tokens=500)
    other.close()
    assert long.reason == "cancelled"
    other.check()  # still answered, by the caller's thread
    other.close()


def test_a_bug_between_steps_fails_requests_not_the_engine(start, prompt, caplog):
    loop = start()
    plan = loop._core._scheduler.plan

    def broken():
        loop._core._scheduler.plan = plan
        raise ZeroDivisionError("a bug")

    loop._core._scheduler.plan = broken
    waiter = ask(loop, prompt(1, 5), "a")
    assert waiter.reason == "error"
    assert waiter.outputs[-1].error == "ZeroDivisionError: a bug"
    assert ask(loop, prompt(1, 5), "b").reason == "length"
    loop.check()


def test_nobody_waits_for_an_engine_that_cannot_go_on(start, prompt, caplog):
    loop = start()

    def broken(*_):
        raise ZeroDivisionError("a bug")

    loop._core._scheduler.plan = loop._core._scheduler.remove = broken
    assert ask(loop, prompt(1, 5), "a").reason == "error"
    wait_until(lambda: not loop.alive)
    with pytest.raises(EngineStopped):
        ask(loop, prompt(1, 5), "b")


def test_the_pool_is_sized_in_bytes_or_pages(start):
    page_bytes = 2 * 2 * 2 * 4 * 8 * 4
    assert start(kv_pool_pages=None, kv_pool_bytes=10 * page_bytes + 5).stats().pages == 10
    assert start(kv_pool_pages=7, kv_pool_bytes=1).stats().pages == 7
    with pytest.raises(ValueError, match=str(page_bytes)):
        start(kv_pool_pages=None, kv_pool_bytes=100)


def test_the_longest_prompt_is_known(start, prompt):
    loop = start(kv_pool_pages=5)
    assert loop.max_prompt_tokens == 19
    assert ask(loop, prompt(1, 19), "fits").reason == "length"
    with pytest.raises(RequestRefused, match="20 tokens"):
        ask(loop, prompt(1, 20), "too long")
    assert start(max_model_len=10_000, kv_pool_pages=500).max_prompt_tokens == SIZES.max_position - 1
