"""Numbers as people read them. Pure; no unit is ever left out."""

import math

_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count_bytes: float) -> str:
    """ "1.5 GiB" and the like."""
    value, unit = float(count_bytes), 0
    while abs(value) >= 999.5 and unit < len(_SIZES) - 1:
        value, unit = value / 1024, unit + 1
    number = _short(value).removesuffix(".00").removesuffix(".0") if unit else round(value)
    return f"{number} {_SIZES[unit]}"


def count(number: float) -> str:
    """ "812", "1,204", "12.4 k", "3.1 M"."""
    if abs(number) < 9_999.5:
        return f"{number:,.0f}"
    for limit, unit in ((999_500, "k"), (999_500_000, "M"), (math.inf, "G")):
        if abs(number) < limit:
            return f"{_short(number / (limit / 999.5 if limit < math.inf else 1e9))} {unit}"
    return str(number)


def share(part: float) -> str:
    """Per cent: "0.4 %", "83 %"; "100 %" only when it is all."""
    percent = part * 100
    if 0 < percent < 0.05:
        return "< 0.1 %"
    if 99.5 <= percent < 100:
        return "> 99 %"
    return f"{percent:.1f} %" if percent < 9.95 and percent else f"{percent:.0f} %"


def points(difference: float) -> str:
    """Of two shares, in percentage points."""
    value = abs(difference) * 100
    return f"{value:.1f} points" if value < 9.95 else f"{value:.0f} points"


def seconds(value: float) -> str:
    """ "12 ms", "1.24 s", "3 min 20 s", "2 h 14 min", "5 d 3 h"."""
    if not value:
        return "0 s"
    if abs(value) < 0.9995:
        return f"{value * 1e6:.0f} µs" if abs(value) < 0.0009995 else f"{_short(value * 1e3)} ms"
    if abs(value) < 59.95:
        return f"{_short(value)} s"
    sign, whole = "-" if value < 0 else "", round(abs(value))
    for unit, below, factor, less in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < factor * (60 if unit == "min" else 24) or unit == "d":
            rest = whole % factor // less
            return f"{sign}{whole // factor} {unit}" + (f" {rest} {below}" if rest else "")
    return ""


def ago(value: float) -> str:
    """Since then: "now", "12 s", "3 min", "2 h"."""
    if value < 1:
        return "now"
    for factor, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if value >= factor:
            return f"{int(value // factor)} {unit}"
    return "now"


def last(span_s: float) -> str:
    """A time that ends now: "last hour", "last 15 min", "last 6 hours", "last day"."""
    for factor, unit in ((86400, "day"), (3600, "hour")):
        if span_s >= factor and not span_s % factor:
            many = span_s // factor
            return f"last {unit}" if many == 1 else f"last {many:.0f} {unit}s"
    return f"last {seconds(span_s)}"


def money(amount: float, currency: str) -> str:
    """ "4.47 USD"; small amounts with the digits that matter."""
    digits = 0 if abs(amount) >= 1000 else 2 if abs(amount) >= 0.1 or not amount else 4
    return f"{amount:,.{digits}f} {currency}"


def plural(number: int, one: str, many: str = "") -> str:
    """ "1 block", "1,204 blocks"."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def _short(value: float) -> str:
    """Three digits at most, as many as matter."""
    return f"{value:.0f}" if abs(value) >= 99.5 else f"{value:.1f}" if abs(value) >= 9.95 else f"{value:.2f}"
