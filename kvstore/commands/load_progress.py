"""The line that `kvterrace load` shows on a terminal while it runs."""

import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from ..load.plan import Plan
    from ..load.run import Runner


class Progress:
    """watch() is called a few times a second with the run; nothing is shown where stderr is no terminal."""

    def __init__(self, plan: "Plan") -> None:
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TextColumn("{task.fields[said]}"))
        self._bar = Bar(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("asking the endpoint", total=None, said="")
        self._plan = plan

    def __enter__(self) -> "Progress":
        self._bar.start()
        return self

    def __exit__(self, *trouble: Any) -> None:
        self._bar.stop()

    def watch(self, runner: "Runner") -> None:
        """Show how it stands."""
        from ..load.report import PHASES, seconds  # noqa: PLC0415  # loaded by now

        tally = runner.tally
        if tally is None:
            return
        limits, alone = self._plan.limits, runner.phase == "alone"
        done = tally.sent if alone else time.perf_counter() - tally.start_s
        total = limits.alone if alone else self._plan.expected
        ttft_s = tally.latencies.due_ttft_s
        said = (
            f"{tally.sent:,} sent, {runner.in_flight:,} under way, {tally.asked - tally.ok - runner.in_flight:,} failed"
        )
        if ttft_s.count:
            said += f"; TTFT {seconds(ttft_s.at(0.5))} p50, {seconds(ttft_s.at(0.95))} p95"
        known = total if total != float("inf") else None
        self._bar.update(
            self._task, description=PHASES[runner.phase], completed=min(done, known or done), total=known, said=said
        )
