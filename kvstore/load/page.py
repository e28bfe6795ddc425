"""The report as one HTML page without a reference to anything else: figures, charts, how they were come by. Light or
dark as the reader's system is, readable on a phone and on paper."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from .charts import Chart, charts
from .report import PHASES, Report, cached_share, goodput, notes, rates, seconds, slo_text, summary
from .slo import LIMITS
from .tables import CHANGE_HEAD, change_rows, count_rows, latency_head, latency_rows
from .tally import HIT_SHARE, Tally

TIER_COLOURS = {
    "hbm": "violet",
    "dram": "blue",
    "nvme": "green",
    "peer": "teal",
    "remote": "pink",
    "computed": "orange",
}
_STYLE = """
:root{color-scheme:light dark;--page:#fff;--card:#f6f7f9;--ink:#1b2027;--muted:#5a6472;--grid:#dfe3e8;--note:#fff7e0;
--blue:#2563eb;--orange:#d97706;--green:#15803d;--red:#dc2626;--violet:#7c3aed;--teal:#0f766e;--pink:#be185d}
@media(prefers-color-scheme:dark){:root{--page:#0f1216;--card:#181d23;--ink:#e7eaee;--muted:#9aa5b1;--grid:#2d343c;
--note:#2a2413;--blue:#6ea8fe;--orange:#f5a94a;--green:#58c27d;--red:#f47272;--violet:#b794f6;--teal:#4fc3b5;
--pink:#f28bb9}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:74rem;padding:2rem 1.25rem 4rem;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.55rem;line-height:1.25;margin:0 0 .2rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.4rem 0 .7rem}
h3{font-size:.98rem;margin:0}
figure+h3,.says+h3{margin-top:1.2rem}
p{margin:.25rem 0}
.sub,.says,dt,.tile small{color:var(--muted)}
code{font-family:ui-monospace,monospace;font-size:.92em;overflow-wrap:anywhere}
.method p{max-width:52rem;margin:.5rem 0}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem;margin:1.4rem 0}
.tile{background:var(--card);border-radius:.6rem;padding:.8rem .95rem}
.tile b{display:block;font-size:1.6rem;line-height:1.3;font-weight:650;font-variant-numeric:tabular-nums}
.tile small{display:block;line-height:1.35}
.note{background:var(--note);border-left:.25rem solid var(--orange);border-radius:.3rem;padding:.55rem .9rem;
margin:.5rem 0}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:1rem}
figure{margin:0;background:var(--card);border-radius:.6rem;padding:.9rem 1rem;min-width:0;break-inside:avoid}
figure svg{width:100%;height:auto;display:block;margin-top:.4rem;font-family:inherit}
.says{font-size:.86rem;margin:.1rem 0 0}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.34rem .7rem;border-bottom:1px solid var(--grid);white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:pre}
thead th{color:var(--muted);font-weight:500;vertical-align:bottom}
td.text{white-space:normal;overflow-wrap:anywhere;text-align:left}
.bar{display:flex;height:1.7rem;border-radius:.4rem;overflow:hidden;background:var(--grid)}
.bar i{display:block;min-width:2px}
.key{display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;margin:.5rem 0 0;padding:0;list-style:none}
.key i{display:inline-block;width:.75rem;height:.75rem;border-radius:.2rem;margin-right:.4rem}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9rem,1fr));gap:.5rem 1.2rem;margin:0}
dt{font-size:.86rem}
dd{margin:0;overflow-wrap:anywhere}
"""


def page(report: Report) -> str:
    """The whole page."""
    title = f"{report.model} under load: {report.scenario}"
    body = "".join(_sections(report, title))
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        "<meta name='color-scheme' content='light dark'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><main>{body}</main></body></html>\n"
    )


def _sections(report: Report, title: str) -> Iterator[str]:
    yield f"<h1>{escape(title)}</h1>"
    yield f"<p class='sub'><code>{escape(report.url)}</code> · {escape(report.started_at)} · kvterrace load</p>"
    yield from (f"<p>{escape(line)}</p>" for line in summary(report))
    yield _tiles(report)
    yield from (f"<p class='note'>{escape(note)}</p>" for note in notes(report))
    drawn = list(charts(report))
    if drawn:
        yield f"<h2>Over all requests, and over time</h2><div class='charts'>{''.join(map(_figure, drawn))}</div>"
    yield from _tiers(report)
    yield from _against(report)
    yield f"<h2>Latency</h2>{_table(latency_head(report), latency_rows(report))}"
    yield f"<h2>Requests and tokens</h2>{_table(['', *(PHASES[name] for name in report.phases)], count_rows(report))}"
    yield from _kinds(report)
    yield from _failures(report)
    yield f"<h2>What was asked for</h2>{_settings(report)}"
    said = "".join(f"<p>{line}</p>" for line in _method(report))
    yield f"<h2>How it was measured</h2><div class='method'>{said}</div>"


def _tiles(report: Report) -> str:
    tally = report.load or next(iter(report.phases.values()))
    rate, times, share = rates(tally), tally.latencies, cached_share(tally)
    tiles = [("requests a second", f"{rate.ok:.2f}", f"ended well, of {rate.due:.2f} that were due")]
    if times.ttft_s.count:
        text = f"median; p95 {seconds(times.due_ttft_s.at(0.95))}, p99 {seconds(times.due_ttft_s.at(0.99))}"
        tiles.append(("time to first token", seconds(times.due_ttft_s.at(0.5)), text))
    if times.tpot_s.count:
        tiles.append(
            ("time per output token", seconds(times.tpot_s.at(0.5)), f"median; p95 {seconds(times.tpot_s.at(0.95))}")
        )
    tiles.append(("output tokens a second", f"{rate.output_tokens:,.0f}", f"and {rate.prompt_tokens:,.0f} of prompts"))
    if share is not None:
        tiles.append(("prompt tokens cached", f"{share:.0%}", f"{tally.tokens.cached:,} of {tally.tokens.cached_of:,}"))
    if report.slo.limits_s:
        tiles.append(
            ("met the objective", f"{goodput(tally):.1%}", f"{rate.good:.2f} a second; {slo_text(report.slo)}")
        )
    return "<div class='tiles'>" + "".join(map(_tile, tiles)) + "</div>"


def _tile(tile: tuple[str, str, str]) -> str:
    name, value, more = map(escape, tile)
    return f"<div class='tile'><small>{name}</small><b>{value}</b><small>{more}</small></div>"


def _figure(chart: Chart) -> str:
    title, says = escape(chart.title), escape(chart.says)
    svg = chart.svg.replace("<svg ", f"<svg role='img' aria-label='{escape(chart.title, quote=True)}' ", 1)
    return f"<figure><h3>{title}</h3><p class='says'>{says}</p>{svg}</figure>"


def _tiers(report: Report) -> Iterator[str]:
    tally = report.load
    if tally is None or not tally.tokens.receipts:
        return
    tiers = [(tier, count) for tier, count in tally.tokens.tiers.items() if count]
    total = sum(count for _, count in tiers)
    bars = "".join(
        f"<i style='width:{count / total:.3%};background:var(--{TIER_COLOURS.get(tier, 'muted')})'></i>"
        for tier, count in tiers
    )
    key = "".join(
        f"<li><i style='background:var(--{TIER_COLOURS.get(tier, 'muted')})'></i>{escape(tier)} {count:,} "
        f"({count / total:.1%})</li>"
        for tier, count in tiers
    )
    yield f"<h2>Where the prompts' KV came from</h2><div class='bar'>{bars}</div><ul class='key'>{key}</ul>"
    yield f"<p class='says'>Prompt tokens by tier, as {tally.tokens.receipts:,} receipts say; {_saved(tally)}</p>"
    if tally.tokens.reasons:
        rows = ([reason, f"{count:,}"] for reason, count in tally.tokens.reasons.most_common())
        yield f"<h3>Why the rest was not there</h3>{_table(['reason', 'requests'], rows)}"


def _against(report: Report) -> Iterator[str]:
    if report.before is not None:
        yield f"<h2>Against a report before</h2><p class='says'>{escape(report.before.said)}</p>"
        yield _table(CHANGE_HEAD, change_rows(report))


def _saved(tally: Tally) -> str:
    saved_s = tally.tokens.saved_s
    word = "saved" if saved_s >= 0 else "lost: loads were waited for longer than computing would have taken"
    return f"in all, they say, {abs(saved_s):,.1f} seconds were {word}."


def _kinds(report: Report) -> Iterator[str]:
    tally = report.load
    if tally is None or len(tally.kinds) < 2:
        return
    rows = (
        [kind, f"{found.count:,}", *(seconds(found.at(share)) for share in (0.5, 0.95, 0.99))]
        for kind, found in sorted(tally.kinds.items())
    )
    yield f"<h2>TTFT by kind of request</h2>{_table(['kind', 'requests', 'p50', 'p95', 'p99'], rows)}"


def _failures(report: Report) -> Iterator[str]:
    rows = [
        [detail, PHASES[phase], f"{count:,}"]
        for phase, tally in report.phases.items()
        for detail, count in tally.errors.most_common()
    ]
    if rows:
        yield f"<h2>What went wrong</h2>{_table(['what', 'phase', 'requests'], rows)}"


def _settings(report: Report) -> str:
    shown = [
        (name, f"{value:g}" if isinstance(value, float) else value)
        for name, value in report.settings.items()
        if value not in (None, "") and value is not False
    ]
    told = report.calibration
    if told.told:
        shown.append(("tokens per word", f"{told.tokens_per_word:.3f}"))
        shown.append(("tokens of the chat template", f"about {told.template_tokens:,}"))
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in shown)
    return f"<dl>{items}</dl>"


def _method(report: Report) -> Iterator[str]:
    yield (
        "Requests come at times of their own (a Poisson process, or the trace's), however the endpoint is doing: when "
        "it stalls, they queue up, as users do. <b>From when due</b> counts from that time, so that no wait is left "
        "out; the other latencies count from when the request was sent."
    )
    yield (
        "<b>TTFT</b>: to the first content of the answer; chunks without any do not count. <b>ITL</b>: from one "
        "content to the next. <b>TPOT</b>: a request's time from its first to its last content, by its output tokens "
        f"less one. <b>A hit</b>: at least {HIT_SHARE:.0%} of the prompt was cached, as the endpoint says."
    )
    yield (
        "Latencies are of requests that ended well; percentiles are within half a percent. Tokens a second are those "
        "of such requests over all the time until the last one ended. Each phase has texts of its own: what one sent "
        "is no hit of the next."
    )
    if report.slo.limits_s:
        told = "; ".join(f"{escape(name)}: {LIMITS[name]}" for name in report.slo.limits_s)
        yield f"<b>Objective</b>: {told}. Whatever was rejected, failed or was never sent has not met it."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td{_kind(cell)}>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>"


def _kind(cell: str) -> str:
    return " class='text'" if len(cell) > 40 else ""
