"""Charts of a report as SVG with matplotlib, of the extra `load`. Colours are names of the page's style sheet, so that
the same picture is right on a light and on a dark page."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import KvterraceError
from .outcome import Status
from .quantiles import Quantiles
from .report import PHASES, Report
from .tally import HIT_SHARE, Sample, Tally

# matplotlib wants colours: each of these stands for a variable of the page, by which it is replaced in the SVG.
COLOURS = {
    "ink": "#010101",
    "muted": "#020202",
    "grid": "#030303",
    "blue": "#040404",
    "orange": "#050505",
    "green": "#060606",
    "red": "#070707",
    "violet": "#080808",
}
WIDTH_IN, HEIGHT_IN = 6.4, 3.1
MAX_COLUMNS = 60  # of a chart over time, each of at least a second
LEGEND = {"loc": "lower left", "bbox_to_anchor": (-0.01, 1.0), "ncols": 4, "borderaxespad": 0.2, "handlelength": 1.6}
SHOWN_FROM = 0.005  # of a distribution: its lowest half percent would squeeze the rest
SHOWN_FROM_S = 1e-4  # and what was read together has no time between
MANY_DECADES = 2.5  # of an axis: only powers of ten are labelled
_SETTINGS: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched and scaled
    "font.size": 10,
    "text.color": COLOURS["ink"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.edgecolor": COLOURS["grid"],
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.6,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "legend.frameon": False,
    "legend.labelcolor": COLOURS["ink"],
    "lines.linewidth": 1.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}

Draw = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Chart:
    """says: what is to be seen, for those who cannot see it, and for a caption."""

    title: str
    says: str
    svg: str


def check_charts() -> None:
    """KvterraceError unless charts can be drawn."""
    _library()


def charts(report: Report) -> Iterator[Chart]:
    """Those that there are figures for."""
    tally = report.load
    if tally is None:
        return
    slo = report.slo.limits_s
    curves = _ttft_curves(report)
    yield _chart(
        "Time to first token",
        "Share of requests whose first content came within that time; under load from when a request was due.",
        lambda axes: _shares(axes, curves, "requests", slo.get("ttft")),
    )
    hits, misses = tally.latencies.hit_ttft_s, tally.latencies.miss_ttft_s
    if hits.count and misses.count:
        both = [("hits", "green", hits), ("misses", "orange", misses)]
        yield _chart(
            "Time to first token of hits and misses",
            f"From sending. A hit: at least {HIT_SHARE:.0%} of its prompt was cached.",
            lambda axes: _shares(axes, both, "requests", None),
        )
    if tally.latencies.itl_s.count:
        itl = [
            (PHASES[name], colour, report.phases[name].latencies.itl_s)
            for name, colour in (("load", "blue"), ("alone", "violet"))
            if name in report.phases and report.phases[name].latencies.itl_s.count
        ]
        yield _chart(
            "Time between contents",
            "Share of the waits from one content of an answer to the next that were not longer.",
            lambda axes: _shares(axes, itl, "waits", slo.get("gap")),
        )
    yield from _over_time(tally)


def _ttft_curves(report: Report) -> list[tuple[str, str, Quantiles]]:
    found: list[tuple[str, str, Quantiles]] = []
    for name, tally in report.phases.items():
        if name == "load":
            found.append(("under load, from when due", "blue", tally.latencies.due_ttft_s))
        else:
            found.append((PHASES[name], "violet", tally.latencies.ttft_s))
    return [each for each in found if each[2].count]


def _over_time(tally: Tally) -> Iterator[Chart]:
    if tally.samples:
        yield _chart(
            "Time to first token over time",
            "Each request when it was due, and how long it then took to its first content.",
            lambda axes: _scatter(axes, tally.samples),
        )
    yield _chart(
        "Requests over time",
        "A second: due, ended well, failed.",
        lambda axes: _requests(axes, tally),
    )
    yield _chart("Requests under way", "Sent and not ended.", lambda axes: _under_way(axes, tally))
    if tally.tokens.prompt:
        yield _chart(
            "Prompt tokens over time",
            "A second, when their request had its first content: cached ones, and those that were computed.",
            lambda axes: _prompt_tokens(axes, tally),
        )
    if tally.tokens.output:
        yield _chart("Output tokens over time", "A second, as they came.", lambda axes: _output_tokens(axes, tally))


def _shares(axes: Any, curves: Sequence[tuple[str, str, Quantiles]], of: str, limit_s: float | None) -> None:
    for name, colour, found in curves:
        points = found.curve()
        x = [points[0][0], *(second for second, _ in points)]
        axes.plot(
            x, [0.0, *(100 * share for _, share in points)], label=name, color=COLOURS[colour], drawstyle="steps-post"
        )
    if limit_s is not None:
        axes.axvline(limit_s, color=COLOURS["red"], linestyle="--", linewidth=1.2, label=f"objective, {limit_s:g} s")
    axes.set_xscale("log")
    lowest, highest = min(each.at(SHOWN_FROM) for _, _, each in curves), max(each.max_s for _, _, each in curves)
    axes.set_xlim(0.8 * max(lowest, SHOWN_FROM_S), 1.2 * max(highest, limit_s or 0.0, 2 * SHOWN_FROM_S))
    axes.set_ylim(0, 103)
    axes.set_ylabel(f"% of {of}")
    _seconds_axis(axes.xaxis)
    axes.legend(**LEGEND)


def _scatter(axes: Any, samples: Sequence[Sample]) -> None:
    told = any(each.cached_tokens is not None for each in samples)
    groups = {
        ("hits" if told else "requests"): (
            "green" if told else "blue",
            "o",
            [e for e in samples if _is_hit(e) or (not told and e.due_ttft_s is not None)],
        ),
        "misses": ("orange", "o", [e for e in samples if told and e.due_ttft_s is not None and not _is_hit(e)]),
        "failed": ("red", "x", [e for e in samples if e.status in (Status.ERROR, Status.TIMEOUT, Status.REJECTED)]),
    }
    for name, (colour, marker, found) in groups.items():
        if found:
            y = [each.e2e_s if each.due_ttft_s is None or name == "failed" else each.due_ttft_s for each in found]
            style: dict[str, Any] = {"linewidths": 0} if marker == "o" else {"linewidths": 1.2}
            axes.scatter(
                [each.at_s for each in found],
                y,
                s=16,
                marker=marker,
                color=COLOURS[colour],
                alpha=0.75,
                label=name,
                **style,
            )
    axes.set_yscale("log")
    _seconds_axis(axes.yaxis)
    axes.set_xlabel("seconds since the start")
    axes.legend(**LEGEND)


def _is_hit(sample: Sample) -> bool:
    return sample.cached_tokens is not None and sample.cached_tokens >= HIT_SHARE * sample.prompt_tokens


def _requests(axes: Any, tally: Tally) -> None:
    width_s, due = _series(tally, "due")
    _, ended = _series(tally, "ended")
    _, failed = _series(tally, "failed")
    x = _middles(width_s, due)
    axes.plot(x, due, color=COLOURS["muted"], linewidth=1.2, label="due/s")
    well = [max(0.0, every - bad) for every, bad in zip(ended, failed, strict=True)]
    axes.plot(x, well, color=COLOURS["blue"], label="ended well/s")
    if any(failed):
        axes.plot(x, failed, color=COLOURS["red"], label="failed/s")
    _over_seconds(axes)


def _under_way(axes: Any, tally: Tally) -> None:
    width_s, level = tally.timeline.in_flight(_columns(tally))
    axes.fill_between(_middles(width_s, level), level, color=COLOURS["violet"], alpha=0.3, linewidth=0)
    axes.plot(_middles(width_s, level), level, color=COLOURS["violet"], label="requests under way")
    _over_seconds(axes)


def _prompt_tokens(axes: Any, tally: Tally) -> None:
    width_s, prompt = _series(tally, "prompt_tokens")
    _, cached = _series(tally, "cached_tokens")
    x = _middles(width_s, prompt)
    if tally.tokens.cached_told:
        parts = [cached, [every - known for every, known in zip(prompt, cached, strict=True)]]
        names, colours = ["cached/s", "computed/s"], [COLOURS["green"], COLOURS["orange"]]
        axes.stackplot(x, parts, colors=colours, labels=names, alpha=0.75, linewidth=0)
    else:
        axes.fill_between(x, prompt, color=COLOURS["blue"], alpha=0.75, linewidth=0, label="prompt tokens/s")
    _over_seconds(axes)


def _output_tokens(axes: Any, tally: Tally) -> None:
    width_s, output = _series(tally, "output_tokens")
    axes.plot(_middles(width_s, output), output, color=COLOURS["blue"], label="output tokens/s")
    _over_seconds(axes)


def _series(tally: Tally, name: str) -> tuple[float, list[float]]:
    """Width of a column in seconds, and what it has per second."""
    width_s, counts = tally.timeline.series(name, _columns(tally))
    return width_s, [count / width_s for count in counts]


def _columns(tally: Tally) -> int:
    return max(1, min(MAX_COLUMNS, int(tally.seconds)))


def _over_seconds(axes: Any) -> None:
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(_library()[1].StrMethodFormatter("{x:,g}"))
    axes.set_xlabel("seconds since the start")
    axes.legend(**LEGEND)


def _middles(width_s: float, counts: Sequence[float]) -> list[float]:
    return [(at + 0.5) * width_s for at in range(len(counts))]


def _seconds_axis(axis: Any) -> None:
    """Ticks as people read times."""
    ticker = _library()[1]
    low, high = axis.get_view_interval()
    many = low <= 0 or high > low * 10**MANY_DECADES
    axis.set_major_locator(ticker.LogLocator(10, subs=(1.0,) if many else (1.0, 2.0, 5.0), numticks=12))
    axis.set_major_formatter(ticker.FuncFormatter(_tick))
    axis.set_minor_locator(ticker.NullLocator())


def _tick(value: float, _: object) -> str:
    if value < 0.999e-3:
        return f"{value * 1e6:g} µs"
    return f"{value * 1e3:g} ms" if value < 0.999 else f"{value:g} s"


def _chart(title: str, says: str, draw: Draw) -> Chart:
    matplotlib, _ = _library()
    from matplotlib.figure import Figure  # noqa: PLC0415  # of an extra

    # The title salts the ids in the picture: several of them share one page.
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": title}):
        figure: Any = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        draw(figure.add_subplot())
        target = io.StringIO()
        figure.savefig(target, format="svg", metadata={"Date": None}, transparent=True)
    return Chart(title, says, _themed(target.getvalue()))


def _themed(svg: str) -> str:
    """Without what only a file of its own needs, with the page's colours and font."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # nothing refers to them, and other charts have the same
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)
    for name, colour in COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return svg


def _library() -> tuple[Any, Any]:
    try:
        import matplotlib  # noqa: PLC0415  # an extra, and it takes half a second
        from matplotlib import ticker  # noqa: PLC0415
    except ImportError as error:
        raise KvterraceError(f"an HTML report needs matplotlib: pip install 'kvterrace[load]' ({error})") from None
    return matplotlib, ticker
