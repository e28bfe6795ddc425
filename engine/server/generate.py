"""GenerateRoute: one generating call from its body to its answer; the same path for chats and completions."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from ..request import Output
from ..request import Request as EngineRequest
from .answers import Answer, ChatAnswer, CompletionAnswer, Json, Naming
from .backend import Backend, Serving
from .body import BodyBudget, read_json
from .client import watched
from .errors import ApiError, ClientGone, engine_failed
from .guard import knows_all
from .ids import CallIds, request_ids, trace_of
from .job import MAX_UNREAD, Job, join
from .metrics import HttpMetrics
from .params import ChatCall, CompletionCall
from .prompts import INLINE_CHARS, prompt_ids, size_chars
from .sse import DONE, event, send_events
from .usage import usage_object

logger = logging.getLogger(__name__)

REQUEST_ID = "x-request-id"

Call = ChatCall | CompletionCall
Batch = list[tuple[int, Output]]


class GenerateRoute:
    """An ASGI application for one POST route. parse: from the body to the checked call. ids: names the calls. path:
    names the route in metrics.

    The whole call runs in here, the sending of the answer included, so that its end (complete, failed, client gone,
    server stopping) always passes through the same `finally`.
    """

    def __init__(
        self,
        path: str,
        parse: Callable[[object], Call],
        ids: CallIds,
        backend: Backend,
        metrics: HttpMetrics,
        budget: BodyBudget,
        threads: Executor,
        *,
        max_unread: int = MAX_UNREAD,
    ) -> None:
        self.path = path
        self._parse = parse
        self._ids = ids
        self._backend = backend
        self._metrics = metrics
        self._budget = budget
        self._threads = threads
        self._max_unread = max_unread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            await self._answer(request, send)
        except ClientGone:
            self._metrics.disconnects.inc()

    async def _answer(self, request: Request, send: Send) -> None:
        call, prompts = await self._prepare(request)
        serving = self._backend.serving()
        with self._ids.take(request.headers.get(REQUEST_ID)) as call_id:
            async with watched(request.receive) as client:
                job = Job(
                    serving.engine,
                    _requests(call, call_id, prompts, trace_of(request.headers.get("traceparent"))),
                    dead=lambda: self._backend.dead,
                    max_unread=self._max_unread if call.stream else None,
                )
                try:
                    client.when_gone(job.abandon)
                    grain = 1 if knows_all(request.scope) else serving.engine.block_tokens
                    await _send(request, send, call, job, self._shape(call, call_id, serving), grain)
                finally:
                    job.close()

    async def _prepare(self, request: Request) -> tuple[Call, list[list[int]]]:
        """The checked call and its prompts' token ids. The body is forgotten afterwards."""
        self._backend.serving()  # before reading a body that nobody will use
        with self._budget.share() as share:
            call = self._parse(await read_json(request, share))
            serving = self._backend.serving(call.model)
            limit = serving.engine.max_prompt_tokens
            tokenizer = serving.loaded.tokenizer
            if size_chars(call) <= INLINE_CHARS:
                return call, prompt_ids(call, tokenizer, limit)
            loop = asyncio.get_running_loop()
            return call, await loop.run_in_executor(self._threads, prompt_ids, call, tokenizer, limit)

    def _shape(self, call: Call, call_id: str, serving: Serving) -> Answer:
        tokenizer = serving.loaded.tokenizer
        ends = frozenset() if call.ignore_eos else tokenizer.eos_ids
        naming = Naming(
            call_id,
            self._backend.model,
            f"kvt-{serving.loaded.digest.hex()[:12]}",
            tokenizer.token_bytes,
            ends.union(call.stop_token_ids),
        )
        kind = ChatAnswer if isinstance(call, ChatCall) else CompletionAnswer
        return kind(naming, stream=call.stream, with_usage=call.wants_usage)


def _requests(call: Call, call_id: str, prompts: Sequence[Sequence[int]], traceparent: str) -> list[EngineRequest]:
    params, kept, cache = call.params(), call.retention, call.kvterrace.cache
    return [
        EngineRequest(name, ids, params, call.priority, kept, cache, traceparent)
        for name, ids in zip(request_ids(call_id, len(prompts)), prompts, strict=True)
    ]


async def _send(request: Request, send: Send, call: Call, job: Job, answer: Answer, grain: int) -> None:
    """grain: of what the usage tells of a miss."""
    if call.stream:
        first = await job.next()  # a refusal that comes now can still have its own status
        events = _events(answer, job, first, grain if call.wants_usage else None)
        await send_events(send, events, headers=[(REQUEST_ID.encode(), answer.call_id.encode())])
    else:
        response = JSONResponse(await _whole(answer, job, grain), headers={REQUEST_ID: answer.call_id})
        await response(request.scope, request.receive, send)


async def _whole(answer: Answer, job: Job, grain: int) -> Json:
    news: dict[int, list[Output]] = {}
    while not job.done:
        for choice, output in await job.next():
            news.setdefault(choice, []).append(output)
    return answer.whole([join(news[choice]) for choice in sorted(news)], _usage(job, grain))


async def _events(answer: Answer, job: Job, first: Batch, grain: int | None) -> AsyncIterator[Sequence[bytes]]:
    """Events in groups that are sent together. A failure is the last event, in place of [DONE]. grain: of the usage;
    None: it is not wanted."""
    batch = first
    try:
        while True:
            part = [event(chunk) for choice, output in batch for chunk in answer.chunks(choice, output)]
            if part:
                yield part
            if job.done:
                break
            batch = await job.next()
    except ApiError as error:
        yield [event(error.body())]
        return
    except ClientGone:
        raise
    except Exception:
        logger.exception("a stream failed")
        yield [event(engine_failed("Internal error.").body())]
        return
    last = [event(answer.usage_chunk(_usage(job, grain)))] if grain is not None else []
    yield [*last, DONE]


def _usage(job: Job, grain: int) -> Json:
    return usage_object(job.prompt_tokens, job.completion_tokens, list(job.receipts.values()), grain=grain)
