"""Prompt tokens by where they came from, times to the first token, and the figures on top of the page."""

from collections.abc import Mapping
from typing import Any

from .. import text
from ..snapshot import Snapshot
from ..timeline import COLUMNS
from . import TIER_NAMES, TIERS, View

HOUR_S = 3600.0


def mix(tokens: Mapping[str, int]) -> list[View]:
    """Shares of a prompt, or of many, by tier; without those that gave nothing."""
    total = sum(tokens.values())
    named = [*TIERS, *sorted(set(tokens) - set(TIERS))]
    return [
        {"tier": each, "name": TIER_NAMES.get(each, each), "share": tokens[each] / total, "tokens": tokens[each]}
        for each in named
        if tokens.get(each)
    ]


def figures(seen: Snapshot, window: str) -> View:
    """What anybody should see at first glance."""
    return {
        "reuse": _reuse(seen, window),
        "others": [
            _first_tokens(seen),
            _limitless(seen),
            _saved(seen),
            _requests(seen, window),
        ],
    }


def traffic(seen: Snapshot, window: str) -> View:
    """A chart of columns: tokens a second by tier."""
    rates = list(seen.timelines[window].rates(seen.now_s))
    used = {tier for each in rates for tier in each}
    names = [each for each in (*TIERS, *sorted(used - set(TIERS))) if each in used]
    return {
        "kind": "columns",
        "unit": "tokens/s",
        **_axis(seen, window),
        "series": [
            {"id": name, "name": TIER_NAMES.get(name, name), "values": [each.get(name, 0.0) for each in rates]}
            for name in names
        ],
        "summary": f"Prompt tokens a second by tier over the last {window}.",
        "empty": "No prompt was served in this time. As soon as an engine serves one, it shows here.",
    }


def first_tokens(seen: Snapshot, window: str) -> View:
    """A chart of dots on a logarithmic scale: times to the first token, of hits and of misses."""
    columns = seen.timelines[window].columns
    series = [
        ("hit", "at least half reused", [each.ttft_hit_s for each in columns]),
        ("miss", "less reused", [each.ttft_miss_s for each in columns]),
    ]
    return {
        "kind": "dots",
        "unit": "s",
        **_axis(seen, window),
        "series": [
            {"id": name, "name": words, "values": values}
            for name, words, values in series
            if any(each is not None for each in values)
        ],
        "summary": f"Median time to the first token over the last {window}, of requests that reused at least half of "
        "their prompt and of the others.",
        "empty": "No request has reached its first token in this time.",
    }


def _reuse(seen: Snapshot, window: str) -> View:
    tokens = seen.timelines[window].tokens()
    total, computed = sum(tokens.values()), tokens.get("computed", 0)
    said = f"{text.count(total - computed)} of {text.count(total)} in the last {window}"
    return {
        "label": "of prompt tokens were reused",
        "value": text.share(1 - computed / total) if total else "–",
        "sub": said if total else f"no prompt in the last {window}",
        "mix": mix(tokens),
    }


def _first_tokens(seen: Snapshot) -> View:
    hit, miss = seen.last.ttft_hit_s, seen.last.ttft_miss_s
    if hit is not None and miss is not None:
        ratio = f" · {miss / hit:.0f}× sooner" if miss > 1.5 * hit else ""
        sub = f"{text.seconds(miss)} with less reuse{ratio}"
    else:
        sub = "none without reuse to compare with" if hit is not None else "no request has reused half of its prompt"
    return {"id": "ttft", "label": "to the first token", "value": text.seconds(hit) if hit else "–", "sub": sub}


def _limitless(seen: Snapshot) -> View:
    """A cache without limit, over the hour if it is measured."""
    spaces = seen.slow.spaces[:1] if seen.whole else seen.slow.spaces  # the store, or all that are the viewer's
    windows = [each for space in spaces for each in space.windows if each.tokens]
    window_s = min((each.window_s for each in windows), key=lambda each: abs(each - HOUR_S), default=0.0)
    chosen = [each for each in windows if each.window_s == window_s]
    tokens = sum(each.tokens for each in chosen)
    label = "with a cache without limit"
    if not tokens:
        return {"id": "limitless", "label": label, "value": "–", "sub": "not measured yet"}
    could = min(sum(each.repeated_tokens for each in chosen) / tokens, 1.0)
    does = sum(each.hit_tokens for each in chosen) / tokens
    lately = text.last(window_s)
    if could - does < 0.005:
        sub = f"nothing to gain in the {lately}"
    else:
        sub = f"{text.points(could - does)} to gain on the store's {text.share(does)}, {lately}"
    return {"id": "limitless", "label": label, "value": text.share(could), "sub": sub}


def _saved(seen: Snapshot) -> View:
    """Seconds of prefill, and what they would have cost."""
    if seen.whole:
        saved_s, since = seen.stats.counters.saved_s, f"since the start {text.ago(max(seen.uptime_s, 1.0))} ago"
    else:
        saved_s, since = sum(each.saved_s or 0.0 for each in seen.last.recent), "in the last requests"
    price = seen.settings.gpu_price
    if price is None:
        value, sub = text.seconds(saved_s), f"{since}; --gpu-price shows it as money"
    else:
        value = text.seconds(saved_s)
        sub = f"{text.money(saved_s / HOUR_S * price, seen.settings.currency)} {since}"
    return {
        "id": "saved",
        "label": "of prefill saved",
        "value": value,
        "sub": sub,
        "how": "Seconds that computing the tokens loaded from the store would have taken, as engines measured it, less "
        "the wait for them. What was still in GPU memory is not counted."
        + (f" At {text.money(price, seen.settings.currency)} an hour for one engine." if price is not None else ""),
    }


def _requests(seen: Snapshot, window: str) -> View:
    lately = sum(each.requests for each in seen.lately)
    whole = seen.timelines[window].requests()
    engines = len(seen.stats.sessions)
    return {
        "id": "requests",
        "label": "requests a minute",
        "value": text.count(lately),
        "sub": f"{text.count(whole)} in the last {window}"
        + (f" · {text.plural(engines, 'engine')} connected" if seen.whole else ""),
    }


def _axis(seen: Snapshot, window: str) -> Mapping[str, Any]:
    """The columns' places in time: Unix seconds of the first one's begin, and their width."""
    shown = seen.timelines[window]
    return {"start": round(shown.start_s, 3), "width": shown.width_s, "count": COLUMNS}
