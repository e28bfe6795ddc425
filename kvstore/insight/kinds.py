"""What kind of text breaks prompts apart: told by how both sides look around the break."""

import re
from collections.abc import Callable

TextOf = Callable[[str, bytes], str]
"""Text of packed tokens of a namespace of that label; "" where it is not allowed."""

_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_TIMESTAMP = re.compile(
    r"\d{4}-\d{1,2}-\d{1,2}([T ]+\d{1,2}:\d{2}(:\d{2})?)?"  # 2026-11-30 04:17:23
    r"|\d{1,2}[:.]\d{2}([:.]\d{2})?\s*([ap]m)?"
    r"|\d{1,4}[/.]\d{1,2}[/.]\d{1,4}"
    r"|\b1[5-9]\d{8}(\d{3}|\d{6})?\b"  # seconds since 1970, or milli- or microseconds
    r"|\b(mon|tues|wednes|thurs|fri|satur|sun)day\b"
    rf"|\b(\d{{1,2}}\.?\s+)?({_MONTHS})[a-z]*\.?\s+\d{{1,4}}(st|nd|rd|th)?(,?\s+\d{{4}})?",
    re.IGNORECASE,
)
_ID = re.compile(
    r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"  # UUID
    r"|\b(?=[a-z_]*\d)(?=\d*[a-f])[0-9a-f]{8,}\b"  # hexadecimal
    r"|\b[a-z]{2,}[_-](?=[\w-]*\d)[\w-]{5,}"  # user_8f3k2, req-1029a
    r"|(?=[A-Za-z_-]*\d)(?=[\d_-]*[A-Za-z])[A-Za-z0-9_-]{16,}",  # base64 and the like
    re.IGNORECASE,
)
_NUMBER = re.compile(r"[-+]?\d[\d.,]*")
_PATTERNS = (("timestamp", _TIMESTAMP), ("id", _ID), ("number", _NUMBER))


def kind_of(ours: str, theirs: str, start: int) -> str:
    """ours, theirs: texts that are alike up to about character `start`. "changed" when both sides have there nothing of
    the same kind."""
    at = _differs(ours, theirs, start)
    for kind, pattern in _PATTERNS:
        if _covers(pattern, ours, at) and _covers(pattern, theirs, at):
            return kind
    return "changed"


def _differs(ours: str, theirs: str, start: int) -> int:
    """The first character that differs: tokens may differ before their texts do."""
    for at in range(max(start - 1, 0), min(len(ours), len(theirs))):
        if ours[at] != theirs[at]:
            return at
    return min(len(ours), len(theirs))


def _covers(pattern: re.Pattern[str], text: str, at: int) -> bool:
    return any(found.start() <= at < found.end() for found in pattern.finditer(text))
