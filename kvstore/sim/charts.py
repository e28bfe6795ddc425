"""Charts of a what-if: token hit rate over capacity, a line a policy, the ceilings above. In the terminal with plotext;
as PNG, SVG or a self-contained HTML page with matplotlib, which comes with the extra `charts`."""

import html
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import KvterraceError
from .report import Study, bad_lines, trace_lines

SUFFIXES = (".png", ".svg", ".html")
CEILING = "with hindsight"
INFINITE = "infinite cache"
_MARKERS = "•x+o*#"


class ChartError(KvterraceError):
    """A chart that cannot be drawn."""


Curve = Sequence[tuple[int, str, float]]  # blocks in DRAM, the capacity as given, share of tokens hit


def curves(study: Study) -> dict[str, Curve]:
    """One curve a policy and the ceilings', by name; points in order of capacity."""
    found: dict[str, list[tuple[int, str, float]]] = {}
    for run in sorted(study.runs, key=lambda run: run.dram.blocks):
        found.setdefault(run.policy, []).append((run.dram.blocks, run.dram.text, run.outcome.token_hit_rate))
    first = next(iter(found))
    for run in sorted((run for run in study.runs if run.policy == first), key=lambda run: run.dram.blocks):
        point = (run.dram.blocks, run.dram.text)
        found.setdefault(CEILING, []).append((*point, run.optimum.token_hit_rate))
        found.setdefault(INFINITE, []).append((*point, study.infinite.token_hit_rate))
    return dict(found)


def terminal_chart(study: Study, width: int, height: int = 18) -> str:
    """The chart as lines of text with colours. One capacity makes no curve: "" then."""
    # Here, since it asks for the terminal's size and loads a library, which a replay has no need of.
    import plotext  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs]

    found = curves(study)
    points = found[INFINITE]
    if len(points) < 2:
        return ""
    figure: Any = plotext.figure
    figure.clear()
    figure.plot_size(width, height)
    figure.theme("simple")  # no background: terminals are dark, or light
    for marker, (name, curve) in zip(_markers(len(found)), found.items(), strict=True):
        x, y = [math.log10(blocks) for blocks, _, _ in curve], [100 * rate for _, _, rate in curve]
        figure.draw(figure.signal(x, y, marker=marker).lines().label(f" {name}"))
    lowest = min(100 * rate for curve in found.values() for _, _, rate in curve)
    corner = {"x": math.log10(points[-1][0]), "y": lowest}  # below the curves' ends: hit rates rise to the right
    figure.legend(**corner, ha="right", va="bottom", relative=True)
    figure.title("% of tokens hit, by DRAM capacity")
    figure.ruler("x").ticks([math.log10(blocks) for blocks, _, _ in points], [text for _, text, _ in points])
    return str(figure.build())


def _markers(count: int) -> Sequence[str]:
    """One a policy, and the two ceilings' dots."""
    return [*(_MARKERS[i % len(_MARKERS)] for i in range(count - 2)), ".", "-"]


def check_out(path: Path) -> None:
    """ChartError unless a chart can be written to `path`: its ending, its directory, and matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise ChartError(f"--out {path}: the name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
    if not path.absolute().parent.is_dir():
        raise ChartError(f"--out {path}: there is no directory {path.absolute().parent}")
    _figure_class()


def write_chart(study: Study, path: Path) -> None:
    """Draw into a file of the kind that its ending names. ChartError when it cannot be written."""
    kind = path.suffix.lower().removeprefix(".")
    image = _draw(study, "svg" if kind == "html" else kind)
    content = _page(study, image.decode()).encode() if kind == "html" else image
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ChartError(f"{path} cannot be written: {error.strerror}") from None


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # an extra; and it takes half a second
    except ImportError as error:
        raise ChartError(f"a chart in a file needs matplotlib: pip install 'kvterrace[charts]' ({error})") from None
    return Figure


def _draw(study: Study, kind: str) -> bytes:
    # Figure and not pyplot: no global state, no display.
    figure: Any = _figure_class()(figsize=(9, 5), layout="constrained")
    axes: Any = figure.add_subplot()
    found = curves(study)
    ticks: Mapping[int, str] = {blocks: text for blocks, text, _ in found[INFINITE]}
    for name, curve in found.items():
        ceiling = name in {CEILING, INFINITE}
        style: dict[str, Any] = (
            {"linestyle": ":" if name == INFINITE else "--", "color": "0.4"} if ceiling else {"marker": "o"}
        )
        axes.plot([blocks for blocks, _, _ in curve], [100 * rate for _, _, rate in curve], label=name, **style)
    axes.set_xscale("log")
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("DRAM")
    axes.set_ylabel("% of tokens hit")
    axes.set_title(study.trace.name, parse_math=False)
    axes.grid(alpha=0.3)
    axes.legend()
    target = io.BytesIO()
    # No date: the same figures make the same file.
    figure.savefig(target, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return target.getvalue()


def _page(study: Study, svg: str) -> str:
    """One file without a reference to any other: the figure, and the numbers behind it."""
    found = curves(study)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in ("DRAM", "blocks", *found))
    rows = "".join(
        f"<tr><td>{html.escape(text)}</td><td>{blocks:,}</td>"
        + "".join(f"<td>{curve[i][2]:.2%}</td>" for curve in found.values())
        + "</tr>"
        for i, (blocks, text, _) in enumerate(found[INFINITE])
    )
    said = "".join(f"<p>{html.escape(line)}</p>" for line in [*trace_lines(study), *bad_lines(study.trace)])
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        f"<title>kvterrace: {html.escape(study.trace.name)}</title>"
        "<style>body{font-family:sans-serif;max-width:60em;margin:2em auto}svg{width:100%;height:auto}"
        "td,th{padding:.2em .8em;text-align:right}</style></head><body>"
        f"<h1>Tokens hit, by capacity</h1>{said}{svg[svg.index('<svg') :]}"
        f"<table><tr>{head}</tr>{rows}</table></body></html>\n"
    )
