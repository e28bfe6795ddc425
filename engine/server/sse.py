"""Server-sent events, at the pace of the reader."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence

from starlette.types import Send

logger = logging.getLogger(__name__)

DONE = b"data: [DONE]\n\n"
STALL_S = 60.0  # a client that takes nothing for so long is cut off
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would collect events otherwise
]


def event(data: object) -> bytes:
    """One event with a JSON object as its data."""
    return b"data: " + json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


async def send_events(
    send: Send,
    parts: AsyncIterator[Sequence[bytes]],
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
    stall_s: float = STALL_S,
) -> None:
    """Sends what `parts` yields as one 200 response; each send waits until the connection has room."""
    await send({"type": "http.response.start", "status": 200, "headers": [*HEADERS, *headers]})
    try:
        async for part in parts:
            async with asyncio.timeout(stall_s):
                await send({"type": "http.response.body", "body": b"".join(part), "more_body": True})
    except TimeoutError:  # returning without the end makes the server drop the connection
        logger.warning("a client read nothing for %.0f s; its stream is cut off", stall_s)
        return
    await send({"type": "http.response.body", "body": b"", "more_body": False})
