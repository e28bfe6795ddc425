"""Receipts: the last requests', in a ring, by id. Written by the engine's thread, read by any."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from .request import Receipt

DEFAULT_RECEIPTS = 1024
MAX_RECEIPTS = 1 << 20


class Receipts:
    """most: kept. now: Unix seconds. `total` counts all. A receipt takes about 1 KB."""

    def __init__(self, most: int = DEFAULT_RECEIPTS, now: Callable[[], float] = time.time) -> None:
        self.total = 0
        self._ring: deque[Receipt] = deque(maxlen=most)
        self._now = now
        self._lock = threading.Lock()

    def add(self, receipt: Receipt) -> Receipt:
        """The newest, which gets its time now; the oldest leaves."""
        stamped = replace(receipt, time_s=self._now())
        with self._lock:
            self._ring.append(stamped)
            self.total += 1
        return stamped

    def newest(self, limit: int, *, reason: str = "", request_id: str = "") -> list[Receipt]:
        """At most `limit`, newest first: of this miss reason, of this request ("" = any). The id of a call with several
        prompts names all of theirs."""
        with self._lock:
            kept = list(self._ring)
        return [each for each, _ in zip(_matching(reversed(kept), reason, request_id), range(limit), strict=False)]


def _matching(receipts: Iterator[Receipt], reason: str, request_id: str) -> Iterator[Receipt]:
    for each in receipts:
        if reason and each.miss_reason != reason:
            continue
        if request_id and each.request_id != request_id and not each.request_id.startswith(f"{request_id}/"):
            continue
        yield each
