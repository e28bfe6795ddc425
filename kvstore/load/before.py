"""Before: an earlier report, and how this one differs from it: what is asked of a change, such as a cache."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..errors import KvterraceError

SCHEMA = 1
MAX_BYTES = 256 << 20
# Where a figure stands in a phase's JSON, and whether it is better when it is smaller.
FIGURES: Mapping[str, tuple[Sequence[str], bool]] = {
    "TTFT from when due, p50": (("latency_s", "due_ttft_s", "p50"), True),
    "TTFT from when due, p95": (("latency_s", "due_ttft_s", "p95"), True),
    "ITL, p95": (("latency_s", "itl_s", "p95"), True),
    "TPOT, p50": (("latency_s", "tpot_s", "p50"), True),
    "end to end from when due, p95": (("latency_s", "due_e2e_s", "p95"), True),
    "requests/s, ended well": (("rates_per_s", "ok"), False),
    "output tokens/s": (("rates_per_s", "output_tokens"), False),
    "share that met the SLO": (("goodput", "share"), False),
    "prompt tokens computed/s": (("rates_per_s", "computed_tokens"), True),
}
# Two reports may well differ in these.
_FREE = frozenset({"seed", "timeout", "alone"})


@dataclass(frozen=True, slots=True)
class Change:
    """One figure in both reports. better: None = neither. timed: it is in seconds."""

    name: str
    before: float
    now: float
    better: bool | None
    timed: bool

    @property
    def ratio(self) -> float | None:
        """now / before; None when there was nothing."""
        return self.now / self.before if self.before else None


@dataclass(frozen=True, slots=True)
class Before:
    """name: of the file. fields: the report's JSON."""

    name: str
    fields: Mapping[str, Any]

    @property
    def said(self) -> str:
        """Which run it was."""
        model, started_at = self.fields.get("model"), self.fields.get("started_at")
        return f"{self.name}: {model} at {self.fields.get('endpoint')}, {started_at}"

    def changes(self, phase: Mapping[str, Any]) -> Iterator[Change]:
        """Figures that both have. phase: of the report now."""
        theirs = _at(self.fields, ("phases", "load"))
        for name, (path, smaller) in FIGURES.items():
            old, new = _at(theirs, path), _at(phase, path)
            if isinstance(old, int | float) and isinstance(new, int | float):
                yield Change(name, old, new, None if old == new else (new < old) is smaller, path[0] == "latency_s")

    def differences(self, scenario: str, settings: Mapping[str, object]) -> Iterator[str]:
        """What was asked for differently, so that figures do not compare."""
        old: Mapping[str, Any] = self.fields.get("settings") or {}
        if self.fields.get("scenario") != scenario:
            yield f"scenario {self.fields.get('scenario')}, now {scenario}"
        for name in sorted({*old, *settings} - _FREE):
            if old.get(name) != settings.get(name):
                yield f"{name} {old.get(name)}, now {settings.get(name)}"


def read_before(path: Path) -> Before:
    """KvterraceError for what is no report of this version."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise KvterraceError(f"--against: {path} is larger than any report")
        fields: object = json.loads(path.read_bytes())
    except OSError as error:
        raise KvterraceError(f"--against: {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise KvterraceError(f"--against: {path} is not JSON; give what an earlier --out FILE.json wrote") from None
    found = cast("dict[str, Any]", fields) if isinstance(fields, dict) else {}
    if found.get("schema") != SCHEMA or not isinstance(_at(found, ("phases", "load")), dict):
        raise KvterraceError(f"--against: {path} is no report of `kvterrace load` that has a load phase")
    return Before(path.name, found)


def _at(value: object, path: Sequence[str]) -> Any:
    for name in path:
        value = cast("dict[str, Any]", value).get(name) if isinstance(value, dict) else None
    return value
