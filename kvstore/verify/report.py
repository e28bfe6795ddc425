"""Report: what was checked, and what came of it; a document with a checksum of its own content."""

import hashlib
import json
import platform
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class Outcome(Enum):
    """skip: could not be checked here, and why is told. It is no pass."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


class Failed(Exception):
    """A check that did not hold; the message has the figures."""


class Skipped(Exception):
    """A check that cannot be made here; the message says why."""


@dataclass(frozen=True, slots=True)
class Check:
    """name: the same each time; said: with figures."""

    name: str
    outcome: Outcome
    said: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Report:
    """facts: versions, machine, addresses. time_s: Unix, when it ended."""

    checks: Sequence[Check]
    facts: Mapping[str, str]
    time_s: float = field(default_factory=time.time)

    @property
    def failed(self) -> bool:
        return any(check.outcome is Outcome.FAIL for check in self.checks)

    @property
    def verdict(self) -> str:
        """How many of each."""
        counts = {outcome: sum(check.outcome is outcome for check in self.checks) for outcome in Outcome}
        return f"{counts[Outcome.PASS]} passed, {counts[Outcome.FAIL]} failed, {counts[Outcome.SKIP]} skipped"

    def as_json(self) -> dict[str, Any]:
        """All of it; "sha256" is that of the rest as digest() has it."""
        return {**self._content(), "sha256": self.digest()}

    def digest(self) -> str:
        """SHA-256 of the content as JSON with sorted keys and no blanks."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def as_markdown(self) -> str:
        """For people, with the same checksum."""
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.time_s))
        lines = ["# kvterrace verify", "", f"{'FAILED' if self.failed else 'Passed'}: {self.verdict}. {when}.", ""]
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        lines += ["", "| check | outcome | found | seconds |", "|---|---|---|---|"]
        for check in self.checks:
            said = check.said.replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {check.name} | {check.outcome.value} | {said} | {check.seconds:.2f} |")
        return "\n".join([*lines, "", f"SHA-256 of the content (see --json): {self.digest()}", ""])

    def _content(self) -> dict[str, Any]:
        return {
            "time_s": round(self.time_s, 3),
            "verdict": "fail" if self.failed else "pass",
            "summary": self.verdict,
            "facts": dict(self.facts),
            "checks": [
                {
                    "name": check.name,
                    "outcome": check.outcome.value,
                    "said": check.said,
                    "seconds": round(check.seconds, 3),
                }
                for check in self.checks
            ],
        }


def digest_of(document: Mapping[str, Any]) -> str:
    """What "sha256" of a report's JSON must be."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def machine_facts() -> dict[str, str]:
    """Where it ran."""
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": _processor() or "unknown",
        "python": platform.python_version(),
    }


def _processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
