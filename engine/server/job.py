"""Job: the engine requests behind one HTTP call, from submission to the last output or to cancellation.

The engine's thread drops outputs into an inbox and wakes the event loop; nothing else crosses. However slowly they are
taken out, what waits is bounded: outputs of the same choice are joined when taken, and a job whose inbox holds too much
is cancelled.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..request import Output, QueueFull, Receipt, Request, RequestRefused
from .errors import (
    RETRY_AFTER_TIMEOUT_S,
    ApiError,
    ClientGone,
    bad_request,
    engine_failed,
    throttled,
    unavailable,
)

if TYPE_CHECKING:
    from ..loop import EngineLoop

ALIVE_CHECK_S = 2.0  # how soon a wait notices an engine that died without a word
#: Tokens (each counted once more per alternative of its logprobs) that may wait for a client that does not read.
MAX_UNREAD = 1 << 15


class Job:
    """Choice number = prompt number * n + sample. Used from one event loop; close() it, whatever happened."""

    def __init__(
        self,
        engine: "EngineLoop",
        requests: Sequence[Request],
        *,
        dead: Callable[[], bool],
        max_unread: int | None = None,
    ) -> None:
        """requests: of the same sampling, one a prompt. dead: whether the engine will never send another output.
        max_unread: None when the whole answer is collected anyway. Raises ApiError 429, 400 or 503 if the engine does
        not take it."""
        self._engine = engine
        self._dead = dead
        self._loop = asyncio.get_running_loop()
        params = requests[0].params
        self._samples = params.n
        self._weight = 1 + (params.logprobs or 0)
        self._max_unread = max_unread
        self._unfinished: dict[str, int] = {}  # request id -> samples without their last output
        self._inbox: deque[tuple[int, Output]] = deque()
        self._arrived = asyncio.Event()
        self._signalled = False
        self._put = self._taken = 0  # weighted tokens; the first is the engine thread's, the second the loop's
        self._cut = False
        self._failure: Exception | None = None
        self.receipts: dict[str, Receipt] = {}
        self.prompt_tokens = sum(len(request.prompt_ids) for request in requests)
        self.completion_tokens = 0
        try:
            for number, request in enumerate(requests):
                self._submit(number, request)
        except ApiError:
            self.close()
            raise

    @property
    def done(self) -> bool:
        """Every sample's last output was taken. Never true of a job that failed or was abandoned."""
        return self._failure is None and not self._unfinished

    def abandon(self) -> None:
        """The client has left: the engine stops at its next step, and next() raises ClientGone."""
        self._fail(ClientGone())

    async def next(self) -> list[tuple[int, Output]]:
        """What is new, at most one Output a choice. Raises ApiError for a sample that failed, or ClientGone."""
        while not self._inbox:
            if self._failure is not None:
                raise self._failure
            try:
                async with asyncio.timeout(ALIVE_CHECK_S):
                    await self._arrived.wait()
            except TimeoutError:
                if self._dead():
                    raise engine_failed("The engine has stopped.") from None
            self._arrived.clear()
        self._signalled = False  # before the inbox is emptied: what comes after that signals again
        if self._failure is not None:
            raise self._failure
        return self._take()

    def close(self) -> None:
        """Cancels what is still running. Idempotent."""
        for request_id in self._unfinished:
            self._engine.cancel(request_id)
        self._unfinished.clear()
        self._inbox.clear()

    def _submit(self, number: int, request: Request) -> None:
        try:
            self._engine.submit(request, self._receiver(number))
        except QueueFull as full:
            raise throttled(
                "Too many requests are waiting; try again later.", full.retry_after_s, "queue_full"
            ) from None
        except RequestRefused as error:
            raise bad_request(f"The request was refused: {error}.") from None
        except RuntimeError as error:  # EngineStopped, whose module needs torch
            raise unavailable(f"{error}.", "engine_stopped") from None
        self._unfinished[request.request_id] = self._samples

    def _receiver(self, number: int) -> Callable[[Output], None]:
        base = number * self._samples

        def receive(output: Output) -> None:  # on the engine's thread
            self._inbox.append((base + output.index, output))
            self._put += len(output.token_ids) * self._weight
            if not self._signalled:
                self._signalled = True
                self._loop.call_soon_threadsafe(self._arrived.set)
            elif self._max_unread is not None and self._put - self._taken > self._max_unread and not self._cut:
                self._cut = True
                self._loop.call_soon_threadsafe(self._overrun)

        return receive

    def _overrun(self) -> None:
        self._fail(ApiError(408, "The client reads too slowly; the answer was cut off.", code="slow_reader"))

    def _fail(self, failure: Exception) -> None:
        self._failure = failure
        self.close()
        self._arrived.set()

    def _take(self) -> list[tuple[int, Output]]:
        batch: dict[int, list[Output]] = {}
        while self._inbox:
            choice, output = self._inbox.popleft()
            batch.setdefault(choice, []).append(output)
            self._account(output)
        return [(choice, join(outputs)) for choice, outputs in batch.items()]

    def _account(self, output: Output) -> None:
        self._taken += len(output.token_ids) * self._weight
        self.completion_tokens += len(output.token_ids)
        if output.receipt is not None:
            self.receipts[output.request_id] = output.receipt
        if output.finish_reason is None:
            return
        left = self._unfinished.get(output.request_id, 1) - 1
        if left:
            self._unfinished[output.request_id] = left
        else:
            self._unfinished.pop(output.request_id, None)
        failure = _failure(output)
        if failure is not None:
            raise failure


def join(outputs: Sequence[Output]) -> Output:
    """One Output of consecutive ones of the same sample."""
    last = outputs[-1]
    if len(outputs) == 1:
        return last
    logprobs = [each for output in outputs for each in output.logprobs or ()]
    return Output(
        last.request_id,
        last.index,
        tuple(token_id for output in outputs for token_id in output.token_ids),
        "".join(output.text for output in outputs),
        last.finish_reason,
        tuple(logprobs) if any(output.logprobs is not None for output in outputs) else None,
        last.receipt,
    )


def _failure(output: Output) -> ApiError | None:
    match output.finish_reason:
        case "queue_timeout":
            return throttled("The request waited too long in the queue.", RETRY_AFTER_TIMEOUT_S, "queue_timeout")
        case "error":
            return engine_failed(output.error or "The engine failed on this request.")
        case "cancelled":
            return unavailable("The request was cancelled: the server is stopping.", "cancelled")
        case _:
            return None
