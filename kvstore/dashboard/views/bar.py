"""The bar on top of the page."""

from .. import text
from ..snapshot import Snapshot
from ..timeline import WINDOWS_S
from . import View

_STATES = {
    "ready": ("ready", "good"),
    "starting": ("starting", "warn"),
    "warming": ("warming from other nodes", "warn"),
    "draining": ("draining", "warn"),
    "stopping": ("stopping", "bad"),
}


def bar(seen: Snapshot, window: str) -> View:
    """Which node this is and how it is. `beat` differs in each, so that the browser knows that news still come."""
    words, tone = _STATES.get(seen.state, (seen.state, "warn"))
    trouble = [each.state for tier in seen.stats.tiers for each in tier.devices if each.state != "ok"]
    if seen.drain is not None:
        left = text.plural(seen.drain.waiting_blocks, "block")
        words, tone = f"draining: {seen.drain.phase}, {left} to go", "warn"
    elif tone == "good" and trouble:
        words, tone = text.plural(len(trouble), "device out of use", "devices out of use"), "bad"
    elif tone == "good" and seen.cluster is not None and not seen.cluster.connected:
        words, tone = "without Valkey", "warn"
    return {
        "node": seen.settings.node or (seen.cluster.node if seen.cluster is not None else ""),
        "version": seen.version,
        "state": words,
        "tone": tone,
        "up": text.seconds(seen.uptime_s // 60 * 60) if seen.uptime_s >= 60 else "< 1 min",
        "beat": round(seen.now_s, 3),
        "window": window,
        "windows": list(WINDOWS_S),
    }
