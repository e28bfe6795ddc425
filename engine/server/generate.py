"""GenerateRoute: one generating call from its body to its answer; the same path for chats and completions."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from ..request import Output
from .answers import Answer, ChatAnswer, CompletionAnswer, Json, Naming
from .backend import Backend, Serving
from .body import BodyBudget, read_json
from .client import watched
from .errors import ApiError, ClientGone, engine_failed
from .job import MAX_UNREAD, Job, join
from .metrics import HttpMetrics
from .params import ChatCall, CompletionCall
from .prompts import INLINE_CHARS, prompt_ids, size_chars
from .sse import DONE, event, send_events
from .usage import usage_object

logger = logging.getLogger(__name__)

Call = ChatCall | CompletionCall
Batch = list[tuple[int, Output]]


class GenerateRoute:
    """An ASGI application for one POST route. parse: from the body to the checked call. path: names it in metrics.

    The whole call runs in here, the sending of the answer included, so that its end (complete, failed, client gone,
    server stopping) always passes through the same `finally`.
    """

    def __init__(
        self,
        path: str,
        parse: Callable[[object], Call],
        backend: Backend,
        metrics: HttpMetrics,
        budget: BodyBudget,
        threads: Executor,
        *,
        max_unread: int = MAX_UNREAD,
    ) -> None:
        self.path = path
        self._parse = parse
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
        async with watched(request.receive) as client:
            job = Job(
                serving.engine,
                prompts,
                call.params(),
                call.priority,
                retention=call.retention,
                dead=lambda: self._backend.dead,
                max_unread=self._max_unread if call.stream else None,
            )
            try:
                client.when_gone(job.abandon)
                answer = self._shape(call, serving)
                if call.stream:
                    first = await job.next()  # a refusal that comes now can still have its own status
                    await send_events(send, _events(answer, job, first, call.wants_usage))
                else:
                    response = JSONResponse(await _whole(answer, job))
                    await response(request.scope, request.receive, send)
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

    def _shape(self, call: Call, serving: Serving) -> Answer:
        tokenizer = serving.loaded.tokenizer
        ends = frozenset() if call.ignore_eos else tokenizer.eos_ids
        naming = Naming(
            self._backend.model,
            f"kvt-{serving.loaded.digest.hex()[:12]}",
            tokenizer.token_bytes,
            ends.union(call.stop_token_ids),
        )
        kind = ChatAnswer if isinstance(call, ChatCall) else CompletionAnswer
        return kind(naming, stream=call.stream, with_usage=call.wants_usage)


async def _whole(answer: Answer, job: Job) -> Json:
    news: dict[int, list[Output]] = {}
    while not job.done:
        for choice, output in await job.next():
            news.setdefault(choice, []).append(output)
    return answer.whole([join(news[choice]) for choice in sorted(news)], _usage(job))


async def _events(answer: Answer, job: Job, first: Batch, with_usage: bool) -> AsyncIterator[Sequence[bytes]]:
    """Events in groups that are sent together. A failure is the last event, in place of [DONE]."""
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
    last = [event(answer.usage_chunk(_usage(job)))] if with_usage else []
    yield [*last, DONE]


def _usage(job: Job) -> Json:
    return usage_object(job.prompt_tokens, job.completion_tokens, list(job.receipts.values()))
