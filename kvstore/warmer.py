"""Warmer: warms many prompts, some at a time, and counts what came of it."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..proto import kv_pb2 as pb
from ..radix import pack_tokens
from .engine_http import EngineError, EngineHttp
from .errors import KvterraceError
from .prompts import Prompt
from .service.admin import CallRefused, NoSidecar, warm_prompt
from .service.channel import Address
from .text import Tokenizer

BUSY = (429, 503)
TRIES, PAUSE_S = 6, 0.5  # of a prompt that a busy engine turns away; the pause doubles
SLACK_S = 5.0


class Unwarmed(KvterraceError):
    """One prompt could not be; the others may. mistake: the file's."""

    def __init__(self, message: str, *, mistake: bool = False) -> None:
        super().__init__(message)
        self.mistake = mistake


class Stopped(KvterraceError):
    """None can be: nobody answers."""


class Warmer(Protocol):
    """Used by several threads."""

    def warm(self, prompt: Prompt) -> dict[str, int]:
        """Tokens by where they were or came from. Unwarmed, Stopped."""
        ...

    def close(self) -> None: ...


def _counter() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class Warmed:
    """prompts: that are warm now; tokens of them by where they were, or came from. leading: lines of the file from its
    beginning that are done. first_error, stopped: why one was not, and why the rest was not tried."""

    prompts: int = 0
    failed: int = 0
    leading: int = 0
    first_error: str = ""
    stopped: str = ""
    mistake: bool = False
    tokens: Counter[str] = field(default_factory=_counter)

    def to_json(self) -> dict[str, object]:
        return {
            "prompts": self.prompts,
            "failed": self.failed,
            "next": self.leading,
            "tokens": dict(self.tokens),
            "error": self.stopped or self.first_error,
        }


def warm_all(
    prompts: Iterable[Prompt], warmer: Warmer, *, start: int, concurrency: int, step: Callable[[], None]
) -> Warmed:
    """Warm them, `concurrency` at a time, until all are done, nobody answers, or Ctrl-C. ConfigError names a bad
    line."""
    run = _Run(iter(prompts), warmer, start, step)
    threads = [threading.Thread(target=run.work, daemon=True) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)
    except KeyboardInterrupt:
        run.stop("interrupted")
    if run.bad_line is not None:
        raise run.bad_line
    return run.result()


class _Run:
    """What its threads share, under one lock."""

    def __init__(self, prompts: Iterator[Prompt], warmer: Warmer, start: int, step: Callable[[], None]) -> None:
        self._prompts = prompts
        self._warmer = warmer
        self._step = step
        self._lock = threading.Lock()
        self._pending: set[int] = set()  # lines in hand, and those that failed
        self._next = start
        self._first_bad = 1 << 62
        self._done = Warmed(leading=start)
        self.bad_line: KvterraceError | None = None

    def work(self) -> None:
        """Take one after the other."""
        while (prompt := self._take()) is not None:
            try:
                tokens = self._warmer.warm(prompt)
            except Unwarmed as error:
                self._failed(prompt, error)
            except Stopped as error:
                self.stop(str(error))
            else:
                self._succeeded(prompt, tokens)

    def stop(self, why: str) -> None:
        with self._lock:
            self._done.stopped = self._done.stopped or why

    def result(self) -> Warmed:
        with self._lock:
            self._done.leading = min(self._pending, default=self._next)
            return self._done

    def _take(self) -> Prompt | None:
        with self._lock:
            if self._done.stopped or self.bad_line is not None:
                return None
            try:
                prompt = next(self._prompts, None)
            except KvterraceError as error:
                self.bad_line = error
                return None
            if prompt is not None:
                self._next = prompt.number + 1
                self._pending.add(prompt.number)
            return prompt

    def _succeeded(self, prompt: Prompt, tokens: dict[str, int]) -> None:
        with self._lock:
            self._pending.discard(prompt.number)
            self._done.prompts += 1
            self._done.tokens.update(tokens)
            self._step()

    def _failed(self, prompt: Prompt, error: Unwarmed) -> None:
        with self._lock:
            self._done.failed += 1
            self._done.mistake = self._done.mistake or error.mistake
            if prompt.number < self._first_bad:
                self._first_bad, self._done.first_error = prompt.number, f"line {prompt.number + 1}: {error}"
            self._step()


class EngineWarmer:
    """Has an engine prefill prompts, one token each; it computes what nobody has. Where a prompt names no model, it is
    the first that the engine has."""

    def __init__(self, engine: EngineHttp, sleep: Callable[[float], None] = time.sleep) -> None:
        self._engine = engine
        self._sleep = sleep
        self._model = ""

    def warm(self, prompt: Prompt) -> dict[str, int]:
        self._model = self._model or self._first_model()
        body: dict[str, object] = {
            "model": self._model,
            **(prompt.more or {}),
            "max_tokens": 1,
            "stream": False,
            "temperature": 0,
        }
        path = "/v1/chat/completions" if prompt.messages else "/v1/completions"
        if prompt.messages:
            body["messages"] = prompt.messages
        else:
            body["prompt"] = list(prompt.tokens) if prompt.tokens else prompt.text
        for attempt in range(TRIES):
            try:
                return _tokens(self._engine.post(path, body))
            except EngineError as error:
                if not error.status:
                    raise Stopped(str(error)) from None
                if error.status not in BUSY or attempt == TRIES - 1:
                    raise Unwarmed(str(error), mistake=error.status not in BUSY and error.status < 500) from None
            self._sleep(PAUSE_S * 2**attempt)
        raise AssertionError("the last try ends it")

    def _first_model(self) -> str:
        try:
            return str(self._engine.get("/v1/models")["data"][0]["id"])
        except EngineError as error:
            raise Stopped(str(error)) from None
        except (KeyError, IndexError, TypeError):
            raise Stopped(f"{self._engine} names no model at /v1/models") from None

    def close(self) -> None:
        """There is nothing to close."""


def _tokens(answer: dict[str, Any]) -> dict[str, int]:
    """By tier where the engine says so, else what OpenAI's API has."""
    usage: dict[str, Any] = answer.get("usage") or {}
    receipt: dict[str, Any] = usage.get("kvterrace") or {}
    tokens: dict[str, Any] = receipt.get("tokens") or {"prompt": usage.get("prompt_tokens") or 0}
    return {tier: int(count) for tier, count in tokens.items() if count}


class SidecarWarmer:
    """Has a sidecar bring up what it, or another node, has of a prompt of one namespace. Nothing is computed."""

    def __init__(self, address: Address, fingerprint: bytes, tokenizer: Tokenizer | None, deadline_s: float) -> None:
        self._address = address
        self._fingerprint = fingerprint
        self._tokenizer = tokenizer
        self._deadline_s = deadline_s
        # One for all threads: grpc.aio does not bear several.
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def warm(self, prompt: Prompt) -> dict[str, int]:
        tokens = self._ids(prompt)
        request = pb.WarmRequest(fingerprint=self._fingerprint, tokens=pack_tokens(tokens), deadline_s=self._deadline_s)
        try:
            call = warm_prompt(self._address, request, timeout_s=SLACK_S)
            reply = asyncio.run_coroutine_threadsafe(call, self._loop).result()
        except NoSidecar as error:
            raise Stopped(str(error)) from None
        except CallRefused as error:
            raise Unwarmed(str(error), mistake=True) from None
        found = {
            "in DRAM before": reply.tokens - reply.brought,
            "brought up": reply.brought,
            f"not brought up ({reply.reason})": len(tokens) - reply.tokens if reply.reason else 0,
        }
        return {name: count for name, count in found.items() if count > 0}

    def _ids(self, prompt: Prompt) -> list[int]:
        if prompt.tokens:
            return list(prompt.tokens)
        if prompt.messages:
            raise Unwarmed("a chat needs an engine, whose template makes tokens of it: --engine URL", mistake=True)
        if self._tokenizer is None:
            raise Unwarmed("a text needs --tokenizer FILE, or --engine URL", mistake=True)
        return list(self._tokenizer.encode(prompt.text))
