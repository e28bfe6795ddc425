"""EngineLoop: the engine's thread. Takes requests and cancellations from any thread, runs steps, sleeps when there is
nothing to do. Everything below it (core, scheduler, pool, sequences) belongs to this one thread; what the others may
touch is here, under one lock."""

import hashlib
import logging
import math
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..connector.base import KVConnector, Miss
from ..connector.tracing import OFF, Tracer
from ..kernels import make_backend
from ..radix import PrefixIndex
from .config import EngineConfig
from .core import EngineCore
from .forecast import Forecast, forecast
from .model import LoadedModel
from .pool import KVPool, make_pool_tensor
from .receipts import Receipts
from .request import Output, QueueFull, Request, RequestRefused
from .runner import Runner
from .stats import EngineStats

log = logging.getLogger(__name__)

T = TypeVar("T")

#: (pool tensor, on_event) -> connector. on_event may be called from any thread and wakes the engine.
ConnectorFactory = Callable[[Tensor, Callable[[], None]], KVConnector]

CALL_TIMEOUT_S = 60.0  # for the engine's thread to get to a question; a step takes far less
LOOKUP_TIMEOUT_S = 5.0  # for the store to say what it has
RETRY_AFTER_MAX_S = 60.0


class EngineStopped(RuntimeError):
    """The engine is not running: not started, closed, or its thread has died."""


class EngineLoop:
    """Thread-safe front of the engine. Outputs are delivered by calling on_output on the engine's thread: it must be
    quick and must not raise (a raise is logged and cancels that request)."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        connector_factory: ConnectorFactory | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        entropy: Callable[[], int] = lambda: secrets.randbits(64),
        tracer: Tracer = OFF,
    ) -> None:
        """Allocates and touches the KV pool, and builds the connector (None: no store beyond HBM). Raises what the
        factory raises, and ValueError for a configuration this model cannot be served with."""
        if connector_factory is not None and not config.prefix_cache:
            raise ValueError("a KV connector needs prefix_cache: loaded blocks are shared blocks")
        self._config = config
        self._tracer = tracer
        self._clock = clock
        self._condition = threading.Condition()
        self._awake = False  # something happened since the last step
        self._calls: deque[Callable[[], None]] = deque()
        self._open: set[str] = set()  # ids of requests in flight
        self._queued: dict[str, int] = {}  # those of them that did not run yet, and their prompts' tokens
        self._left_s: deque[float] = deque(maxlen=32)  # when the last requests left the queue
        self._rejected = 0
        self._stopping = False  # no new requests
        self._ending = False  # the thread is to end
        pool = _make_pool(loaded, config)
        runner = Runner(loaded.model, make_backend(pool.tensor.device), pool)
        self._connector = connector_factory(pool.tensor, self._wake) if connector_factory else None
        self._core = EngineCore(
            pool,
            runner.run,
            config,
            loaded.tokenizer,
            max_model_len=min(config.max_model_len or loaded.config.max_position, loaded.config.max_position),
            connector=self._connector,
            clock=clock,
            entropy=entropy,
            tracer=tracer,
        )
        self._core.on_started = self._on_started
        self._core.on_ended = self._on_ended
        self._stats = self._core.snapshot()
        self._thread = threading.Thread(target=self._main, name="kvterrace-engine", daemon=True)

    @property
    def connector(self) -> KVConnector | None:
        """For its status() only; its verbs belong to the engine's thread."""
        return self._connector

    @property
    def alive(self) -> bool:
        """Started, not closed, thread running."""
        return self._thread.is_alive() and not self._stopping

    @property
    def block_tokens(self) -> int:
        return self._config.block_tokens

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt submit() accepts."""
        return self._core.capacity - 1

    def start(self) -> None:
        self._thread.start()

    def close(self, *, drain_s: float = 0.0) -> None:
        """Refuses new requests, waits up to drain_s for those in flight, cancels the rest, closes the connector and
        ends the thread. Closing twice, or what was never started, is harmless."""
        with self._condition:
            self._stopping = True
            if self._thread.is_alive():
                self._condition.wait_for(lambda: not self._open, timeout=drain_s)
            self._ending = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(CALL_TIMEOUT_S)
        elif self._thread.ident is None:
            self._core.close()
        self._tracer.close()

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Queues a request. Raises QueueFull, EngineStopped, or RequestRefused for one that can never be served."""
        self._core.validate(request)
        with self._condition:
            if not self.alive:
                raise EngineStopped("the engine is not running")
            if request.request_id in self._open:
                raise RequestRefused(f"a request with id {request.request_id!r} is in flight")
            if len(self._queued) >= self._config.max_queue:
                self._rejected += 1
                raise QueueFull(self._retry_after_s())
            self._open.add(request.request_id)
            self._queued[request.request_id] = len(request.prompt_ids)
            self._enqueue(lambda: self._core.submit(request, on_output))

    def cancel(self, request_id: str) -> None:
        """Ends all samples of a request with finish_reason "cancelled"; unknown ids are ignored (it just ended)."""
        with self._condition:
            if request_id in self._open:
                self._enqueue(lambda: self._core.cancel(request_id))

    def stats(self) -> EngineStats:
        """A copy, as of the last step. Never waits for the engine."""
        stats = self._stats.copy()
        with self._condition:
            stats.queued, stats.rejected = len(self._queued), self._rejected
            stats.queued_tokens = sum(self._queued.values())
        return stats

    @property
    def receipts(self) -> Receipts:
        """Of the last requests."""
        return self._core.receipts

    def why(self, prompt_ids: Sequence[int]) -> Forecast:
        """What a prompt would find now, here and in the store, and where it breaks: a dry run. Waits for both."""
        count, size = len(prompt_ids), self._config.block_tokens
        packed = np.asarray(prompt_ids[: (count - 1) // size * size], dtype="<i4").tobytes()
        known, miss = self._ask(lambda: self._core.in_hbm(packed))
        if self._connector is None:
            return forecast(count, known, None, block_tokens=size, store="none", unasked=miss)
        found = self._connector.lookup(packed, LOOKUP_TIMEOUT_S)
        store = self._connector.status().kind if found is not None else "unavailable"
        return forecast(count, known, found, block_tokens=size, store=store, unasked=Miss("disconnected", known))

    def clear_hbm(self) -> int:
        """Drops every cached block that nothing leases; returns how many."""
        return self._ask(self._core.clear_hbm)

    def check(self) -> None:
        """Recounts pages and leases on the engine's thread; AssertionError if any is lost or counted twice."""
        self._ask(self._core.check)

    def _enqueue(self, call: Callable[[], None]) -> None:
        """Under the lock: to be called by the engine's thread before its next step."""
        self._calls.append(call)
        self._awake = True
        self._condition.notify_all()

    def _wake(self) -> None:
        with self._condition:
            self._awake = True
            self._condition.notify_all()

    def _ask(self, question: Callable[[], T]) -> T:
        """The answer of the engine's thread, or the caller's own while there is no such thread."""
        answer: Future[T] = Future()

        def call() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:  # noqa: BLE001  (handed to the caller, who raises it)
                answer.set_exception(error)

        with self._condition:
            threaded = self._thread.is_alive() and not self._ending
            if threaded:
                self._enqueue(call)
        if not threaded:
            if self._thread.ident is not None:
                self._thread.join(CALL_TIMEOUT_S)
            call()
        return answer.result(CALL_TIMEOUT_S)

    def _main(self) -> None:
        if self._config.threads:
            torch.set_num_threads(self._config.threads)  # of this thread, the only one that computes
        try:
            while self._work():
                pass
            self._run_calls()
            self._core.close()
        except Exception:
            log.exception("the engine's thread has failed for good")
            self._core.abandon("the engine has failed")
        self._stats = self._core.snapshot()
        with self._condition:
            self._stopping = self._ending = True
            self._open.clear()
            self._condition.notify_all()

    def _work(self) -> bool:
        """Calls, then a step; sleeps if it had nothing to do. False: the engine ends."""
        try:
            self._run_calls()
            busy = self._core.step()
        except Exception as error:
            log.exception("the engine failed between steps; all requests end with an error")
            self._core.fail_all(f"{type(error).__name__}: {error}")
            busy = True
        self._stats = self._core.snapshot()
        with self._condition:
            if not busy:
                deadline_s = self._core.next_deadline_s()
                timeout_s = None if deadline_s is None else max(0.0, deadline_s - self._clock())
                self._condition.wait_for(lambda: self._awake or self._ending, timeout=timeout_s)
            return not self._ending

    def _run_calls(self) -> None:
        """Takes them one by one, so that one that raises does not swallow those behind it."""
        while True:
            with self._condition:
                self._awake = False
                if not self._calls:
                    return
                call = self._calls.popleft()
            call()

    def _on_started(self, request_id: str) -> None:
        with self._condition:
            self._queued.pop(request_id, None)
            self._left_s.append(self._clock())

    def _on_ended(self, request_id: str) -> None:
        with self._condition:
            if request_id in self._queued:
                del self._queued[request_id]
                self._left_s.append(self._clock())
            self._open.discard(request_id)
            self._condition.notify_all()

    def _retry_after_s(self) -> float:
        """Under the lock: when half of the queue will have left, at the rate of the last departures; one second when
        there is no rate yet."""
        if len(self._left_s) < 2:
            return 1.0
        interval_s = (self._clock() - self._left_s[0]) / len(self._left_s)
        return min(RETRY_AFTER_MAX_S, max(1.0, interval_s * len(self._queued) / 2))


def _make_pool(loaded: LoadedModel, config: EngineConfig) -> KVPool:
    model = loaded.config
    page = (model.kv_heads, model.layers, 2, config.block_tokens, model.head_dim)
    page_bytes = math.prod(page) * loaded.model.dtype.itemsize
    pages = config.kv_pool_pages or config.kv_pool_bytes // page_bytes
    if pages * config.block_tokens < 2:
        raise ValueError(f"kv_pool_bytes is {config.kv_pool_bytes}, but one page of this model takes {page_bytes}")
    tensor = make_pool_tensor((pages, *page), loaded.model.dtype, loaded.model.device)
    if not config.prefix_cache:
        return KVPool(tensor, None)
    return KVPool(tensor, PrefixIndex(hashlib.sha256(loaded.digest).digest(), block_tokens=config.block_tokens))
