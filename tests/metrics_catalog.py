"""Every metric there is, as docs/metrics.md has it (which a test holds to the program): what dashboards, alerts and
autoscalers may name. tests are no package: load it by path, as tests/deploy does."""

import re
from dataclasses import dataclass
from pathlib import Path

_ROW = re.compile(r"^\| `(?P<name>kvterrace_\w+)` \| (?P<kind>\w+) \| (?P<labels>[^|]*) \| (?P<text>.*) \|$")
_SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("", "_sum", "_count")}


@dataclass(frozen=True, slots=True)
class Family:
    """kind: counter, gauge or histogram. section: of the page."""

    name: str
    kind: str
    labels: tuple[str, ...]
    section: str


def families() -> list[Family]:
    """In the page's order."""
    found, section = [], ""
    page = Path(__file__).resolve().parents[1] / "docs" / "metrics.md"
    for line in page.read_text().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        if (row := _ROW.match(line)) is not None:
            labels = tuple(label.strip(" `") for label in row["labels"].split(",") if label.strip())
            found.append(Family(row["name"], row["kind"], labels, section))
    return found


ALL_METRICS: dict[str, Family] = {
    family.name + suffix: family for family in families() for suffix in _SUFFIXES.get(family.kind, ("",))
}
"""By the name of a series as Prometheus has it: with _total, _bucket, _sum, _count."""
