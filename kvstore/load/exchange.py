"""exchange: one request to its end, timed as its client sees it: each content at the moment it was read.

Only contents count for times: neither the chunk that merely names the role nor the one with the usage is a token.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import aiohttp

from .endpoint import MAX_ERROR_BYTES, PATHS, Endpoint, reason_of
from .outcome import Outcome, Status, Usage
from .sse import EventParser, TooLong
from .talks import Prompt

REJECTIONS = (429, 503)
MAX_DETAIL_CHARS = 160
MAX_TEXT_CHARS = 1 << 18  # of an answer that a conversation repeats

Clock = Callable[[], float]


class _Failed(Exception):
    """The exchange went wrong in a way that has a name."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


async def exchange(
    endpoint: Endpoint, prompt: Prompt, outcome: Outcome, *, clock: Clock, timeout_s: float, keep_text: bool = False
) -> None:
    """Send `prompt` and fill in `outcome`, whatever happens. Cancelled, it leaves it marked as cut."""
    try:
        async with asyncio.timeout(timeout_s):
            await _ask(endpoint, prompt, _Reader(outcome, clock, keep_text=keep_text))
    except _Failed as failed:
        outcome.status, outcome.detail = failed.status, _short(str(failed))
    except TimeoutError:
        outcome.status, outcome.detail = Status.TIMEOUT, f"no end within {timeout_s:g} s"
    except (aiohttp.ClientError, OSError, TooLong) as error:
        outcome.status, outcome.detail = Status.ERROR, _short(reason_of(error))
    except asyncio.CancelledError:
        outcome.status, outcome.detail = Status.CUT, "stopped by us"
        raise
    finally:
        outcome.end_s = clock()


class _Reader:
    """Takes in the events of one stream."""

    def __init__(self, outcome: Outcome, clock: Clock, *, keep_text: bool) -> None:
        self.outcome, self.clock = outcome, clock
        self.complete = False
        self._keep_text = keep_text
        self._last_s = 0.0

    def take(self, data: bytes, now_s: float) -> None:
        """One event's data, read at now_s. _Failed when it is an error, or nothing that a chat stream has."""
        if data == b"[DONE]":
            self.complete = True
            return
        try:
            event: object = json.loads(data)
        except (ValueError, RecursionError):
            raise _Failed(Status.ERROR, "an event is not JSON") from None
        if not isinstance(event, dict):
            raise _Failed(Status.ERROR, "an event is not a JSON object")
        fields = cast("dict[str, Any]", event)
        if fields.get("error"):
            status, detail = _said(fields)
            raise _Failed(status, detail or "the stream ended in an error")
        for choice in _objects(fields.get("choices")):
            text = _content(choice)
            if text is not None:
                self._content(text, now_s)
            self.complete = self.complete or choice.get("finish_reason") is not None
        usage = fields.get("usage")
        if isinstance(usage, dict):
            self.outcome.usage = usage_of(cast("dict[str, Any]", usage)) or self.outcome.usage

    def _content(self, text: str, now_s: float) -> None:
        outcome = self.outcome
        if outcome.first_s is None:
            outcome.first_s = now_s
        else:
            outcome.gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        if self._keep_text and len(outcome.text) < MAX_TEXT_CHARS:
            outcome.text += text


async def _ask(endpoint: Endpoint, prompt: Prompt, reader: _Reader) -> None:
    url = f"{endpoint.url}/{PATHS[endpoint.asking.kind]}"
    async with endpoint.http.post(url, json=endpoint.body(prompt), allow_redirects=False) as response:
        if response.status != 200:
            _, said = _said(_parsed(await response.content.read(MAX_ERROR_BYTES)))
            status = Status.REJECTED if response.status in REJECTIONS else Status.ERROR
            raise _Failed(status, f"HTTP {response.status}" + (f": {said}" if said else ""))
        if response.content_type != "text/event-stream":
            raise _Failed(Status.ERROR, f"the answer is {response.content_type}, not a stream of events")
        parser = EventParser()
        async for chunk in response.content.iter_any():
            now_s = reader.clock()
            for data in parser.feed(chunk):
                reader.take(data, now_s)
    if not reader.complete:
        raise _Failed(Status.ERROR, "the stream was cut off")


def usage_of(fields: Mapping[str, Any]) -> Usage | None:
    """Of an OpenAI `usage` object; None when it has no counts."""
    prompt, output = _count(fields.get("prompt_tokens")), _count(fields.get("completion_tokens"))
    if prompt is None or output is None:
        return None
    cached = _count(_object(fields.get("prompt_tokens_details")).get("cached_tokens"))
    receipt = _object(fields.get("kvterrace"))
    tiers = {
        str(tier): count
        for tier, value in _object(receipt.get("tokens")).items()
        if (count := _count(value)) is not None
    }
    saved_s, reason = receipt.get("saved_s"), receipt.get("miss_reason")
    return Usage(
        prompt,
        output,
        cached,
        tiers,
        reason if isinstance(reason, str) else "",
        float(saved_s) if isinstance(saved_s, int | float) else None,
    )


def _content(choice: Mapping[str, Any]) -> str | None:
    """What this event adds to the answer, reasoning and calls of tools included; None = nothing."""
    text = choice.get("text")  # of completions
    if isinstance(text, str) and text:
        return text
    delta = _object(choice.get("delta"))
    text = delta.get("content")
    if isinstance(text, str) and text:
        return text
    if any(delta.get(name) for name in ("reasoning_content", "reasoning", "tool_calls")):
        return ""
    return None


def _said(fields: Mapping[str, Any]) -> tuple[Status, str]:
    """Of a body with an `error`, OpenAI's or a like one: whether it is a rejection, and its message."""
    error = fields.get("error")
    if isinstance(error, str):
        return Status.ERROR, error
    told = _object(error) or fields  # older vLLM has the fields at the top
    busy = told.get("type") == "rate_limit_error" or told.get("code") in REJECTIONS
    message = told.get("message") or told.get("detail") or ""
    return Status.REJECTED if busy else Status.ERROR, str(message)


def _parsed(body: bytes) -> Mapping[str, Any]:
    try:
        return _object(json.loads(body))
    except (ValueError, RecursionError):
        return {"message": body.decode("utf-8", "replace")}


def _object(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[Mapping[str, Any]]:
    return [_object(each) for each in cast("list[object]", value)] if isinstance(value, list) else []


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= MAX_DETAIL_CHARS else f"{line[: MAX_DETAIL_CHARS - 1]}…"
