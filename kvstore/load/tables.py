"""Tables of a report: rows of text that both the terminal and the page show, and the terminal's own."""

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from .quantiles import Quantiles
from .report import LATENCIES, PHASES, Report, cached_share, changes, goodput, quantiles, rates, seconds

PERCENTILES = ("p50", "p95", "p99", "max")


def change_rows(report: Report) -> Iterator[list[str]]:
    """A figure, what it was, what it is, and the latter by the former."""
    for each in changes(report):
        before, now = (seconds(value) if each.timed else f"{value:,.4g}" for value in (each.before, each.now))
        word = "" if each.better is None else " better" if each.better else " worse"
        yield [each.name, before, now, "" if each.ratio is None else f"{each.ratio:.2f} ×{word}"]


CHANGE_HEAD = ("", "before", "now", "now / before")


def change_table(report: Report) -> Table:
    """Beside the report before."""
    table = Table(title=f"against {report.before.name if report.before else ''}", title_justify="left")
    for column in CHANGE_HEAD:
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in change_rows(report):
        table.add_row(*row)
    return table


def latency_table(report: Report) -> Table:
    """Percentiles; within eighty columns."""
    table = Table(title="latency", title_justify="left")
    for column in latency_head(report):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    for row in latency_rows(report):
        table.add_row(*row)
    return table


def latency_head(report: Report) -> list[str]:
    """The columns of latency_rows()."""
    return ["", *PERCENTILES, *(["alone p50"] if len(report.phases) > 1 else [])]


def latency_rows(report: Report) -> Iterator[list[str]]:
    """A latency's name, its percentiles of the last phase, and its median alone; those that nobody has are left out."""
    *before, last = report.phases.values()
    for name, title in LATENCIES.items():
        found = quantiles(last, name)
        if found.count:
            alone = [quantiles(tally, name) for tally in before]
            yield [title, *_cells(found), *(seconds(each.at(0.5)) if each.count else "" for each in alone)]


def count_table(report: Report) -> Table:
    """Requests, rates and tokens of both phases."""
    table = Table(title="requests and tokens", title_justify="left")
    for column in ("", *(PHASES[phase] for phase in report.phases)):
        table.add_column(column, justify="right" if column else "left")
    for row in count_rows(report):
        table.add_row(*(escape(cell) for cell in row))
    return table


def count_rows(report: Report) -> Iterator[list[str]]:
    """A name, and its value in each phase; failures and tiers only where there are any."""
    tallies = list(report.phases.values())
    found = [rates(tally) for tally in tallies]
    yield ["requests sent", *(f"{tally.sent:,}" for tally in tallies)]
    for status, title in (("ok", "ended well"), ("rejected", "rejected (429, 503)"), ("timeout", "timed out"),
                          ("error", "failed"), ("cut", "under way at the end")):  # fmt: skip
        if status == "ok" or any(tally.statuses[status] for tally in tallies):
            yield [f"  {title}", *(f"{tally.statuses[status]:,}" for tally in tallies)]
    yield ["requests/s, ended well", *(f"{rate.ok:.2f}" for rate in found)]
    yield ["prompt tokens/s", *(f"{rate.prompt_tokens:,.0f}" for rate in found)]
    if any(rate.computed_tokens is not None for rate in found):
        yield ["  computed/s", *(_number(rate.computed_tokens) for rate in found)]
    yield ["output tokens/s", *(f"{rate.output_tokens:,.1f}" for rate in found)]
    if report.slo.limits_s:
        yield ["goodput, requests/s", *(f"{rate.good:.2f}" for rate in found)]
        yield ["  share that met the SLO", *(f"{goodput(tally):.1%}" for tally in tallies)]
    if any(tally.tokens.cached_told for tally in tallies):
        yield ["prompt tokens cached", *(_share(cached_share(tally)) for tally in tallies)]
    for tier in dict.fromkeys(tier for tally in tallies for tier in tally.tokens.tiers):
        if any(tally.tokens.tiers[tier] for tally in tallies):
            yield [f"  {tier}", *(f"{tally.tokens.tiers[tier]:,}" for tally in tallies)]
    if any(tally.tokens.receipts for tally in tallies):
        yield ["seconds saved, as receipts say", *(f"{round(tally.tokens.saved_s, 1) + 0.0:,.1f}" for tally in tallies)]


def _cells(found: Quantiles) -> list[str]:
    return [seconds(value) for value in (found.at(0.5), found.at(0.95), found.at(0.99), found.max_s)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
