"""What the demo measured, as a table, a bar chart and one machine-readable line."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.bar import Bar
from rich.console import Console
from rich.table import Table

from .client import Answer

TIERS = ("hbm", "dram", "nvme", "peer", "computed")
ROWS = ("cold", "hbm", "dram", "other_replica", "restarted", "nvme")
PEER_ROWS = ("cold", "dram", "peer")


@dataclass(frozen=True, slots=True)
class Stage:
    """One row: where the prefix was when the same questions were asked again."""

    title: str
    where: str
    answers: tuple[Answer, ...]

    @property
    def ttft_s(self) -> float:
        """Median time to first token over the questions, seconds."""
        return statistics.median(answer.ttft_s for answer in self.answers)


def outputs_identical(stages: Sequence[Stage]) -> bool:
    """Did every stage answer every question with the very text of the first stage, which had nothing cached?"""
    first = [answer.text for answer in stages[0].answers]
    return all(first) and all([answer.text for answer in stage.answers] == first for stage in stages)


def show(console: Console, stages: Sequence[Stage]) -> None:
    """Print the table and the chart."""
    cold_s = stages[0].ttft_s
    table = Table(title=f"Time to first token, median of {len(stages[0].answers)} questions on one shared prefix")
    for column in ("", "prefix found in", "TTFT", "of cold", "prompt", *TIERS):
        table.add_column(column, justify="left" if column in ("", "prefix found in") else "right")
    for stage in stages:
        last = stage.answers[-1]
        table.add_row(
            stage.title,
            stage.where,
            f"{stage.ttft_s * 1e3:,.0f} ms",
            f"{stage.ttft_s / cold_s:.1%}",
            str(last.prompt_tokens),
            *(str(last.tiers[tier]) for tier in TIERS),
        )
    console.print(table)
    chart = Table(box=None, show_header=False, padding=(0, 1))
    chart.add_column()
    chart.add_column(width=50)
    chart.add_column(justify="right")
    for stage in stages:
        chart.add_row(stage.title, Bar(cold_s, 0, stage.ttft_s, color="green"), f"{stage.ttft_s:.3f} s")
    console.print(chart)


def machine_line(stages: Sequence[Stage], rows: Sequence[str] = ROWS) -> str:
    """The `DEMO {json}` line that scripts read: seconds by row, whose names are the stages' in order."""
    times = {f"{name}_ttft_s": round(stage.ttft_s, 4) for name, stage in zip(rows, stages, strict=True)}
    shown = next((stage for name, stage in zip(rows, stages, strict=True) if name == "other_replica"), stages[-1])
    last = shown.answers[-1]
    counts = {"cached_tokens": last.cached_tokens, "prompt_tokens": last.prompt_tokens}
    return "DEMO " + json.dumps({**times, **counts, "outputs_identical": outputs_identical(stages)})
