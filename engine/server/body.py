"""Reading a request's body: bounded in size, in time, and in what all calls together hold in memory."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request
from pydantic_core import from_json
from starlette.requests import ClientDisconnect

from .errors import ApiError, ClientGone, bad_request, throttled

MAX_BODY_BYTES = 16 << 20
MAX_HELD_BYTES = 128 << 20  # of all bodies between their first byte and their hand-over to the engine
READ_TIMEOUT_S = 30.0


class BodyBudget:
    """What the bodies of the calls being prepared hold together. Used from the event loop only."""

    def __init__(self, capacity_bytes: int = MAX_HELD_BYTES) -> None:
        self._capacity_bytes = capacity_bytes
        self.held_bytes = 0

    @contextmanager
    def share(self) -> Iterator["BodyShare"]:
        """One call's part; given back at the end of the block."""
        share = BodyShare(self)
        try:
            yield share
        finally:
            self.held_bytes -= share.size

    def take(self, size: int) -> None:
        """Raises ApiError 429 when there is no room."""
        if self.held_bytes + size > self._capacity_bytes:
            raise throttled("The server is reading too many long requests; try again.", 1.0, "server_busy")
        self.held_bytes += size


class BodyShare:
    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self.size = 0

    def grow(self, size: int) -> None:
        self._budget.take(size)
        self.size += size


async def read_json(request: Request, share: BodyShare) -> object:
    """The parsed body. ApiError 413, 408, 429, or 400 for what is not JSON; ClientGone when the client left."""
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared) > MAX_BODY_BYTES:
        raise _too_large()
    raw = bytearray()
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            async for chunk in request.stream():
                share.grow(len(chunk))
                raw += chunk
                if len(raw) > MAX_BODY_BYTES:
                    raise _too_large()
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        raise ApiError(408, f"The body did not arrive within {READ_TIMEOUT_S:.0f} s.", headers=_CLOSE) from None
    try:
        return from_json(bytes(raw), allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(f"The body is not valid JSON: {error}.", code="invalid_json") from None


_CLOSE = {"Connection": "close"}  # what is left of the body is not read


def _too_large() -> ApiError:
    return ApiError(413, f"The body may have at most {MAX_BODY_BYTES} bytes.", code="body_too_large", headers=_CLOSE)
