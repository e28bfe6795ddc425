"""Report: what was measured, as JSON, and in sentences that both the terminal and the page show."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .before import SCHEMA, Before, Change
from .calibrate import Calibration
from .quantiles import Quantiles
from .slo import Slo
from .tally import Tally

PHASES = {"alone": "one at a time", "load": "under load"}
LATE_S = 0.05  # a client that sends later than this is told of
MANY_REQUESTS = 100  # below it p99 is the slowest
LATENCIES: Mapping[str, str] = {
    "ttft_s": "TTFT",
    "due_ttft_s": "TTFT from when due",
    "hit_ttft_s": "TTFT, hits",
    "miss_ttft_s": "TTFT, misses",
    "itl_s": "ITL",
    "tpot_s": "TPOT",
    "e2e_s": "end to end",
    "due_e2e_s": "end to end from when due",
    "late_s": "sent late by",
}


@dataclass(frozen=True, slots=True)
class Report:
    """settings: what was asked for, by flag. left_out: requests of a trace that were too long. before: an earlier
    report to show beside it."""

    url: str
    model: str
    scenario: str
    settings: Mapping[str, object]
    calibration: Calibration
    slo: Slo
    phases: Mapping[str, Tally]
    started_at: str
    stopped: bool = False
    left_out: int = 0
    before: Before | None = None

    @property
    def load(self) -> Tally | None:
        return self.phases.get("load")

    def to_json(self) -> dict[str, Any]:
        """Plain values. Durations are in seconds."""
        return {
            "schema": SCHEMA,
            "started_at": self.started_at,
            "endpoint": self.url,
            "model": self.model,
            "scenario": self.scenario,
            "settings": dict(self.settings),
            "calibration": asdict(self.calibration),
            "slo_s": dict(self.slo.limits_s),
            "stopped": self.stopped,
            "left_out": self.left_out,
            "phases": {name: phase_json(tally) for name, tally in self.phases.items()},
            "against": self._against(),
            "notes": list(notes(self)),
        }

    def _against(self) -> dict[str, Any] | None:
        if self.before is None:
            return None
        found = {each.name: {**asdict(each), "ratio": _rounded(each.ratio)} for each in changes(self)}
        return {"file": self.before.name, "changes": found}


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second: requests that were due and that ended well; tokens of the latter, over all the time until the last
    of them ended. computed: prompt tokens that were not cached; None when the endpoint does not tell. good: requests
    that met the objective."""

    due: float
    ok: float
    good: float
    prompt_tokens: float
    computed_tokens: float | None
    output_tokens: float
    good_output_tokens: float


def rates(tally: Tally) -> Rates:
    seconds, tokens = max(tally.seconds, 1e-9), tally.tokens
    window_s = tally.due_until_s - tally.start_s
    computed = (tokens.prompt - tokens.cached) / seconds if tokens.cached_told else None
    return Rates(
        due=(tally.sent + tally.unsent) / window_s if window_s > 0 else 0.0,
        ok=tally.ok / seconds,
        good=tally.good / seconds,
        prompt_tokens=tokens.prompt / seconds,
        computed_tokens=computed,
        output_tokens=tokens.output / seconds,
        good_output_tokens=tally.good_output_tokens / seconds,
    )


def goodput(tally: Tally) -> float:
    """Share of the requests that met the objective; 0.0 when there were none."""
    return tally.good / tally.asked if tally.asked else 0.0


def cached_share(tally: Tally) -> float | None:
    """Of the prompt tokens; None when the endpoint does not tell."""
    return tally.tokens.cached / tally.tokens.cached_of if tally.tokens.cached_of else None


def phase_json(tally: Tally) -> dict[str, Any]:
    """One phase in plain values."""
    tokens, timeline = tally.tokens, tally.timeline
    width_s, in_flight = timeline.in_flight()
    series = ("due", "sent", "ended", "failed", "prompt_tokens", "cached_tokens", "output_tokens")
    return {
        "seconds": round(tally.seconds, 6),
        "requests": {
            "due": tally.sent + tally.unsent,
            "sent": tally.sent,
            "never_sent": tally.unsent,
            **{status: tally.statuses[status] for status in ("ok", "rejected", "timeout", "error", "cut")},
        },
        "failures": dict(tally.errors),
        "rates_per_s": {name: None if rate is None else round(rate, 6) for name, rate in asdict(rates(tally)).items()},
        "goodput": {"share": round(goodput(tally), 6), "met": tally.good, "broken": dict(tally.broken)},
        "latency_s": {name: quantiles(tally, name).to_json() for name in LATENCIES},
        "ttft_by_kind_s": {kind: found.to_json() for kind, found in tally.kinds.items()},
        "tokens": {
            "prompt": tokens.prompt,
            "output": tokens.output,
            "cached": tokens.cached if tokens.cached_told else None,
            "requests_that_told": tokens.told,
        },
        "receipts": {
            "count": tokens.receipts,
            "unequal": tokens.unequal,
            "tokens_by_tier": dict(tokens.tiers),
            "misses_by_reason": dict(tokens.reasons),
            "saved_s": round(tokens.saved_s, 6),
        },
        "timeline": {
            "width_s": width_s,
            "in_flight": in_flight,
            **{name: [round(count, 3) for count in timeline.series(name)[1]] for name in series},
        },
        "samples": [{name: _rounded(value) for name, value in asdict(each).items()} for each in tally.samples],
    }


def notes(report: Report) -> Iterator[str]:
    """What a reader must know before believing a figure."""
    tally = report.load
    if report.before is not None:
        different = list(report.before.differences(report.scenario, report.settings))
        if different:
            yield f"Not asked for the same as before: {'; '.join(different)}."
    if report.stopped:
        yield "Stopped before its end: figures are of what was measured until then."
    if report.left_out:
        yield f"{report.left_out:,} requests of the trace were left out: longer than the model takes."
    if not report.calibration.told:
        yield "The endpoint does not tell token counts: a word is taken for a token, and a content for one, too."
    if tally is None:
        return
    if tally.unsent:
        yield f"{tally.unsent:,} requests were never sent: --concurrency left them no room within --timeout."
    late_s = tally.latencies.late_s.at(0.99)
    if late_s > LATE_S:
        yield (
            f"1 % of the requests were sent more than {late_s:.2f} s late: --concurrency, or this machine, held them "
            "back. What is counted from when a request was due has that in it."
        )
    if 0 < tally.ok < MANY_REQUESTS:
        yield f"Only {tally.ok} requests ended well: their p99 is the slowest of them."
    if tally.tokens.unequal:
        yield f"{tally.tokens.unequal:,} receipts do not sum to their prompt: do not believe tokens by tier."
    contents = tally.latencies.itl_s.count + tally.latencies.ttft_s.count
    if tally.tokens.told and tally.tokens.output > 1.2 * contents > 0:
        yield (
            f"A content has {tally.tokens.output / contents:.1f} tokens on average: ITL is from one content to the "
            "next, TPOT from token to token."
        )


def summary(report: Report) -> Iterator[str]:
    """The main things, in sentences."""
    tally = report.load or next(iter(report.phases.values()))
    rate, failed = rates(tally), tally.asked - tally.ok
    if tally is report.load:
        yield f"{rate.due:.2f} requests a second were due, {rate.ok:.2f} ended well; {_failures(tally, failed)}."
    else:
        yield f"{tally.ok:,} requests ended well, one at a time; {_failures(tally, failed)}."
    times, alone = tally.latencies, report.phases.get("alone")
    if times.ttft_s.count:
        text = f"TTFT {seconds(times.due_ttft_s.at(0.5))} median, {seconds(times.due_ttft_s.at(0.95))} p95"
        if alone is not None and alone is not tally and alone.latencies.ttft_s.count:
            text += f"; alone it was {seconds(alone.latencies.ttft_s.at(0.5))} median"
        yield f"{text}."
    share = cached_share(tally)
    if share is not None:
        hits, misses = times.hit_ttft_s, times.miss_ttft_s
        both = hits.count and misses.count
        ratio = f"; a hit's median TTFT is {hits.at(0.5) / misses.at(0.5):.0%} of a miss's" if both else ""
        yield f"{share:.1%} of the prompt tokens were cached{ratio}."
    if report.slo.limits_s:
        worst = ", ".join(f"{name} {count:,}" for name, count in tally.broken.most_common())
        broken = f" (not kept: {worst})" if worst else ""
        yield f"{goodput(tally):.1%} met {slo_text(report.slo)}: {rate.good:.2f} requests a second{broken}."


def slo_text(slo: Slo) -> str:
    return " and ".join(f"{name} ≤ {limit:g} s" for name, limit in slo.limits_s.items())


def changes(report: Report) -> list[Change]:
    """What differs from the report before; nothing when there is none."""
    if report.before is None or report.load is None:
        return []
    return list(report.before.changes(phase_json(report.load)))


def seconds(value: float) -> str:
    """Of a duration, in the unit that suits it."""
    if value < 0.9995e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    return f"{value:.3g} s" if value < 999.5 else f"{value:,.0f} s"


def quantiles(tally: Tally, name: str) -> Quantiles:
    return getattr(tally.latencies, name)


def _failures(tally: Tally, failed: int) -> str:
    if not failed:
        return "none failed"
    most, count = tally.errors.most_common(1)[0] if tally.errors else ("never sent", tally.unsent)
    return f"{failed:,} did not ({count:,}: {most})"


def _rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value
