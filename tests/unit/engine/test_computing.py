"""Two engines with one store get the same new prompt at once: it is computed once; and what engines do meanwhile."""

import threading
import time

import pytest
import torch
from kvterrace.connector.base import Delayed, Offer
from kvterrace.connector.bridge import Bridge
from kvterrace.connector.factory import Model, namespace_of
from kvterrace.connector.limits import ConnectorLimits
from kvterrace.connector.local import LocalConnector
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.core import EngineCore
from kvterrace.engine.pool import KVPool, make_pool_tensor
from kvterrace.engine.request import Request, SamplingParams
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.embedded import EmbeddedClient
from kvterrace.kvstore.store import Store
from kvterrace.radix import PrefixIndex

pytestmark = pytest.mark.unit

CALL = 32  # tokens
CALL_S = 0.06
PROMPT = 5 * CALL + 1


class Shop:
    """One store, and engines on it, each stepping in a thread of its own."""

    def __init__(self, letters, fake_model):
        self.letters, self.fake_model = letters, fake_model
        self.bridge = Bridge(max_tasks=64, late_s=1.0)
        self.store = self.on_loop(lambda: Store(Arena.anonymous(512 * 4096), clock=time.monotonic))
        self.engines = []
        self.stopping = False

    def on_loop(self, call):
        async def run():
            return call()

        return self.bridge.call(run, 5.0)

    def engine(self):
        made = Engine(self)
        self.engines.append(made)
        return made

    def counters(self):
        return self.on_loop(self.store.stats).counters

    def close(self):
        self.on_loop(self.store.check)
        self.stopping = True
        for each in self.engines:
            each.woken.set()
            each.thread.join()
        self.on_loop(self.store.check)
        for each in self.engines:
            each.core.close()


class Engine:
    def __init__(self, shop):
        self.shop, self.woken = shop, threading.Event()
        config = EngineConfig(model="none", block_tokens=4, max_step_tokens=CALL, max_running=8)
        tensor = make_pool_tensor((128, 1, 2, 2, 4, 2), torch.float32, torch.device("cpu"))
        self.pool = KVPool(tensor, PrefixIndex(bytes(32), block_tokens=4, clock=time.monotonic))
        self.model = shop.fake_model(self.pool, type("Still", (), {"now": 0.0})())
        namespace = namespace_of(tensor, Model(weights_digest=bytes(32)))
        client = shop.on_loop(lambda: EmbeddedClient(shop.store, namespace))
        limits = ConnectorLimits(observe_every_s=0.01)
        self.connector = LocalConnector("embedded", client, shop.bridge, tensor, self.woken.set, limits=limits)
        assert self.connector.start(5.0) == ""
        self.core = EngineCore(
            self.pool,
            self._run,
            config,
            shop.letters,
            max_model_len=512,
            connector=self.connector,
            clock=time.monotonic,
            entropy=lambda: 5,
        )
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._loop)
        self.thread.start()

    def _run(self, chunks):
        time.sleep(CALL_S * sum(chunk.count for chunk in chunks) / CALL)
        return self.model.run(chunks)

    def _loop(self):
        while not self.shop.stopping:
            with self.lock:
                self.woken.clear()
                busy = self.core.step()
                self.core.check()
            if not busy:
                self.woken.wait(0.02)

    def submit(self, name, prompt):
        """An event for its end; its outputs."""
        ended, outputs = threading.Event(), []

        def on_output(output):
            outputs.append(output)
            if output.finish_reason is not None:
                ended.set()

        params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        request = Request(name, tuple(prompt), params, "interactive")
        with self.lock:
            self.core.submit(request, on_output)
        self.woken.set()
        return ended, outputs


@pytest.fixture
def shop(rig):
    one = rig()
    made = Shop(one.core._vocabulary, type(one.model))
    yield made
    made.close()


def test_two_engines_with_one_store_compute_the_same_new_prompt_once(shop, prompt):
    one, two = shop.engine(), shop.engine()
    for at in range(2):
        ended, _ = one.submit(f"warm{at}", prompt(at, PROMPT))
        assert ended.wait(20)
    time.sleep(0.1)  # what it took is known to the store
    before = one.core.stats.prefill_tokens + two.core.stats.prefill_tokens
    began = time.monotonic()
    first, second = one.submit("a", prompt(7, PROMPT)), two.submit("b", prompt(7, PROMPT))
    assert first[0].wait(20)
    assert second[0].wait(20)
    took_s = time.monotonic() - began
    computed = one.core.stats.prefill_tokens + two.core.stats.prefill_tokens - before
    assert computed < 1.5 * PROMPT, "most of it was computed once"
    assert took_s < 10 * CALL_S + 2.0
    waited = next(out[-1].receipt for _, out in (first, second) if out[-1].receipt.tokens["dram"])
    assert waited.tokens["dram"] >= 2 * CALL
    assert [out.token_ids for out in first[1]] == [out.token_ids for out in second[1]]
    assert shop.counters().inflight_waits["loaded"] == 1


def test_a_request_that_is_cancelled_while_it_computes_lets_the_one_that_waits_go_on(shop, prompt):
    one, two = shop.engine(), shop.engine()
    for at in range(2):
        assert one.submit(f"warm{at}", prompt(at, PROMPT))[0].wait(20)
    time.sleep(0.1)
    one.submit("a", prompt(7, PROMPT))
    time.sleep(CALL_S)
    second = two.submit("b", prompt(7, PROMPT))
    time.sleep(CALL_S)
    with one.lock:
        one.core.cancel("a")
    assert second[0].wait(20)
    waits = shop.counters().inflight_waits
    assert waits["owner_gone"] + waits["loaded"] + waits["too_slow"] == 1
    assert shop.counters().inflight_broken == 0


def test_requests_that_wait_for_others_hold_up_nobody(rig, store, prompt):
    """They do not count among those fetched ahead, and keep no page."""
    fake = store()
    fake.withheld = {"offer"}
    r = rig(connector=fake, kv_connector="embedded", kv_fetch_ahead=2)
    for at in range(2):
        r.submit(prompt(at, 40))
    r.step()
    assert fake.count("fetch") == 2
    waiting = [entry[1] for entry in fake.log if entry[0] == "fetch"]
    for ident in waiting:
        fake._push("delayed", lambda ident=ident: Delayed(ident, 5.0), ident)
    r.step()
    third = r.submit(prompt(9, 40))
    r.step()
    assert fake.count("fetch") == 3
    third_id = [entry[1] for entry in fake.log if entry[0] == "fetch"][-1]
    fake.queue = [each for each in fake.queue if each[2] != third_id]
    fake._push("free", lambda: Offer(third_id, 0, {}, "never_seen"), third_id)
    r.step(20)
    assert third.reasons == ["length"]
    r.clock.now += 4.0
    r.step()
    assert r.core.stats.late_transfers == 0, "the connector said how long it may take"
    r.clock.now += 4.0
    r.run()
    assert r.core.stats.late_transfers == 2
    r.all_free()
