"""Finding: one thing that was looked at."""

from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """fail: kvterrace will not work so; warn: it works, and worse than it could."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """what: a few words, the same each time. said: what was found, with figures. do: what to do about it, "" of what is
    well."""

    what: str
    level: Level
    said: str
    do: str = ""


def ok(what: str, said: str) -> Finding:
    return Finding(what, Level.OK, said)


def warn(what: str, said: str, do: str) -> Finding:
    return Finding(what, Level.WARN, said, do)


def fail(what: str, said: str, do: str) -> Finding:
    return Finding(what, Level.FAIL, said, do)
