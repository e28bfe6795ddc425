"""Client: notices that the other side hung up, whatever the handler is doing at that moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.types import Receive


class Client:
    """`gone` turns true once, and `on_gone` is called then (at once if it already is)."""

    def __init__(self) -> None:
        self.gone = False
        self._on_gone: Callable[[], None] | None = None

    def when_gone(self, call: Callable[[], None]) -> None:
        self._on_gone = call
        if self.gone:
            call()

    def leave(self) -> None:
        self.gone = True
        if self._on_gone is not None:
            self._on_gone()


@asynccontextmanager
async def watched(receive: Receive) -> AsyncIterator[Client]:
    """Watches a connection whose request body is read. Leaving the block ends the watch."""
    client = Client()
    task = asyncio.create_task(_watch(receive, client))
    try:
        yield client
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch(receive: Receive, client: Client) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    client.leave()
