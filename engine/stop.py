"""TextStream: from token ids to the text that may be shown. Stop strings are found across token borders, and text that
could be the beginning of one is held back until it is decided."""

from collections.abc import Iterable, Sequence
from typing import Protocol


class Detokenizer(Protocol):
    """Incremental: push() returns the text that became certain, flush() what is left (half a character, say)."""

    def push(self, token_id: int) -> str: ...
    def flush(self) -> str: ...


class TextStream:
    """One sample's text. After a stop string was found, nothing more comes out."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self._detokenizer = detokenizer
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens release."""
        return self._release("".join([self._detokenizer.push(token_id) for token_id in token_ids]))

    def flush(self) -> str:
        """The end: everything that is still held back, up to a stop string if one is completed by it."""
        text = self._release(self._detokenizer.flush())
        tail, self._held = ("" if self.stopped else self._held), ""
        return text + tail

    def _release(self, new: str) -> str:
        if self.stopped:
            return ""
        if not self._stops:
            return new
        text = self._held + new
        found = [at for at in (text.find(stop) for stop in self._stops) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
