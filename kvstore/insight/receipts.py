"""Receipts: the last of them, in a ring, found by request and by reason."""

from collections import deque
from collections.abc import Iterator

from ..types import Receipt
from .names import reason_name


class Receipts:
    """most: kept. `total` counts all."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._ring: deque[Receipt] = deque()
        self._by_id: dict[str, deque[Receipt]] = {}
        self._by_reason: dict[str, deque[Receipt]] = {}
        self.total = 0

    def add(self, receipt: Receipt) -> None:
        """The newest."""
        if len(self._ring) == self._most:
            self._drop()
        self._ring.append(receipt)
        self._by_id.setdefault(_asked_for(receipt.request_id), deque()).append(receipt)
        self._by_reason.setdefault(_reason(receipt), deque()).append(receipt)
        self.total += 1

    def find(self, request_id: str = "", reason: str = "") -> Iterator[Receipt]:
        """Those of that request (of each of its prompts, "ID/0", "ID/1", ..., when it had several) and whose first
        missing block has that reason, newest first."""
        if request_id:
            chosen = (
                each
                for each in reversed(self._by_id.get(_asked_for(request_id), ()))
                if request_id in (each.request_id, _asked_for(each.request_id))
            )
        else:
            chosen = reversed(self._by_reason.get(reason_name(reason), ())) if reason else reversed(self._ring)
        yield from (each for each in chosen if not reason or (each.miss is not None and each.miss.reason == reason))

    def __iter__(self) -> Iterator[Receipt]:
        """Newest first."""
        return reversed(self._ring)

    def __len__(self) -> int:
        return len(self._ring)

    def _drop(self) -> None:
        """The oldest; it is the oldest of its request and of its reason, too."""
        oldest = self._ring.popleft()
        of_request, of_reason = self._by_id[_asked_for(oldest.request_id)], self._by_reason[_reason(oldest)]
        of_request.popleft()
        of_reason.popleft()
        if not of_request:
            del self._by_id[_asked_for(oldest.request_id)]


def _asked_for(request_id: str) -> str:
    """The part of an id that the client saw: a call with several prompts has one receipt a prompt, "ID/0", "ID/1"."""
    head, slash, number = request_id.rpartition("/")
    return head if slash and number.isdigit() else request_id


def _reason(receipt: Receipt) -> str:
    return reason_name(receipt.miss.reason) if receipt.miss is not None else ""
