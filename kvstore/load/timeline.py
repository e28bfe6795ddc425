"""Timeline: what happened when, in columns of fixed number: when time goes on, they grow wider."""

MAX_COLUMNS = 1024
FIRST_WIDTH_S = 0.25
SERIES = ("due", "sent", "ended", "failed", "prompt_tokens", "cached_tokens", "output_tokens")


class Timeline:
    """Counts by series and time since the start."""

    def __init__(self) -> None:
        self.width_s = FIRST_WIDTH_S
        self._columns: dict[str, list[float]] = {name: [0.0] * MAX_COLUMNS for name in SERIES}
        self._used = 0

    def add(self, series: str, at_s: float, count: float = 1.0) -> None:
        """at_s before the start counts as the start."""
        column = max(0, int(at_s / self.width_s))
        while column >= MAX_COLUMNS:
            self._fold()
            column = int(at_s / self.width_s)
        self._columns[series][column] += count
        self._used = max(self._used, column + 1)

    def series(self, name: str, most: int = MAX_COLUMNS) -> tuple[float, list[float]]:
        """(width of a column in seconds, counts by column); neighbours are joined until there are at most `most`."""
        join = max(1, -(-self._used // most))
        counts = self._columns[name][: self._used]
        return self.width_s * join, [sum(counts[at : at + join]) for at in range(0, self._used, join)]

    def in_flight(self, most: int = MAX_COLUMNS) -> tuple[float, list[float]]:
        """Requests sent and not ended, at the end of each column."""
        width_s, sent = self.series("sent", most)
        _, ended = self.series("ended", most)
        level, levels = 0.0, list[float]()
        for more, less in zip(sent, ended, strict=True):
            level += more - less
            levels.append(level)
        return width_s, levels

    def _fold(self) -> None:
        self.width_s *= 2
        for name, counts in self._columns.items():
            halves = [counts[at] + counts[at + 1] for at in range(0, MAX_COLUMNS, 2)]
            self._columns[name] = halves + [0.0] * (MAX_COLUMNS // 2)
        self._used = -(-self._used // 2)
