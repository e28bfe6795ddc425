"""CallIds: what a call is known by, to its client, to the store and to whoever asks for its receipt later."""

import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

_CLIENTS = re.compile(r"[A-Za-z0-9._-]{1,64}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class CallIds:
    """One kind of call's ids, such as chatcmpl-...; no two calls in flight have the same. Event loop only."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._open: set[str] = set()

    @contextmanager
    def take(self, wanted: str | None) -> Iterator[str]:
        """wanted: the client's X-Request-Id, which the id then ends in; made anew where there is none, where it is no
        name (64 letters, digits, ., _ and - at most), or where a call in flight has it."""
        suffix = wanted if wanted and _CLIENTS.fullmatch(wanted) else uuid.uuid4().hex
        name = f"{self._prefix}-{suffix}"
        if name in self._open:
            name = f"{name}-{uuid.uuid4().hex[:8]}"
        self._open.add(name)
        try:
            yield name
        finally:
            self._open.discard(name)


def request_ids(call_id: str, prompts: int) -> list[str]:
    """Of the engine's requests behind a call: the call's own, or one numbered for each of its prompts."""
    return [call_id] if prompts == 1 else [f"{call_id}/{number}" for number in range(prompts)]


def trace_of(header: str | None) -> str:
    """A traceparent header that is one; else ""."""
    return header if header and _TRACEPARENT.fullmatch(header) else ""
