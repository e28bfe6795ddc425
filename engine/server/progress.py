"""LoadingDisplay: what the user sees while the model loads."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn


class LoadingDisplay:
    """A bar on a terminal, a plain line each tenth elsewhere. update() may be called from any thread."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stderr)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=self._console, transient=True) if self._console.is_terminal else None
        self._task = self._bar.add_task("starting", total=1.0) if self._bar else None
        self._next_tenth = 0

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, fraction: float, what: str) -> None:
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=fraction, description=what)
        elif fraction * 10 >= self._next_tenth:
            self._next_tenth = int(fraction * 10) + 1
            self._console.print(f"{fraction:4.0%} {what}", markup=False, highlight=False, soft_wrap=True)
