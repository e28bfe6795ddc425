"""What another size of cache would hit, and which prompts break early."""

from collections.abc import Sequence
from typing import Any

from ...insight.types import CurvePoint, Finding, SpaceInsight
from .. import text
from ..snapshot import Snapshot
from . import View

WORTH = 0.005  # of a share: less is not worth saying
FINDINGS = 8
MODELS = 4  # of their own in the chart

KINDS = {
    "timestamp": "A time stands early in these prompts",
    "id": "An id stands early in these prompts",
    "number": "A number stands early in these prompts",
    "reordered": "The same parts stand in another order",
    "changed": "Something small changes early in these prompts",
    "unknown": "Something small changes early in these prompts",
}
ADVICE = {
    "timestamp": "Move it behind what stays the same, or round it to the day.",
    "id": "Move it behind what stays the same.",
    "number": "Move it behind what stays the same.",
    "reordered": "Sort them, tools for example, before the prompt is made.",
    "changed": "Move what changes behind what stays the same.",
    "unknown": "Move what changes behind what stays the same.",
}


def curve(seen: Snapshot) -> View:
    """A chart of the hit share against the capacity, and a sentence of what more memory would bring."""
    if not seen.whole:
        return {"points": [], "empty": "This tells of the whole node, and is for those who may see all of it."}
    if not seen.slow.spaces or len(seen.slow.spaces[0].curve) < 2:
        return {"points": [], "empty": "Not measured yet: it takes some requests that repeat."}
    space = seen.slow.spaces[0]
    points = [(each.capacity_bytes, round(each.hit_share, 4)) for each in space.curve]
    marks = [{"at": space.dram_bytes, "name": "DRAM now"}] if space.dram_bytes else []
    if space.nvme_bytes > space.dram_bytes:
        marks.append({"at": space.nvme_bytes, "name": "with NVMe"})
    return {
        "points": points,
        "models": _models(seen.slow.spaces[1:], [capacity for capacity, _ in points]),
        "marks": [{**each, "share": round(share_at(space.curve, int(str(each["at"]))), 4)} for each in marks],
        "sentence": sentence(space),
        "summary": "Share of tokens that a cache of each size would have hit.",
        "note": f"from {text.plural(space.references, 'block reference')}, {text.share(space.sampled_share)} of all",
        "empty": "",
    }


def _models(spaces: Sequence[SpaceInsight], capacities: Sequence[int]) -> list[View]:
    """What each namespace would hit with all of a capacity to itself: those asked for most, where there are several."""
    asked = sorted((each for each in spaces if len(each.curve) > 1), key=lambda each: -each.references)
    return [
        {
            "name": each.label or each.fingerprint.hex()[:12],
            "shares": [round(share_at(each.curve, capacity), 4) for capacity in capacities],
        }
        for each in asked[: MODELS if len(asked) > 1 else 0]
    ]


def sentence(space: SpaceInsight) -> str:
    """What twice and four times the memory would bring, and half of it cost."""
    now = share_at(space.curve, space.dram_bytes)
    for factor in (2, 4):
        more = share_at(space.curve, factor * space.dram_bytes) - now
        if more >= WORTH:
            size = text.size((factor - 1) * space.dram_bytes)
            return f"+{size} of DRAM → +{text.points(more)} of tokens from DRAM"
    less = now - share_at(space.curve, space.dram_bytes // 2)
    if less < WORTH:
        return f"Half of the DRAM, {text.size(space.dram_bytes // 2)}, would hit as much: what is asked for fits."
    return f"More DRAM would bring nothing; half of it would cost {text.points(less)}."


def share_at(curve: Sequence[CurvePoint], capacity_bytes: float) -> float:
    """Between the points of a curve, straight; beyond them, what its ends say."""
    before = None
    for each in curve:
        if each.capacity_bytes >= capacity_bytes:
            if before is None or each.capacity_bytes == before.capacity_bytes:
                return each.hit_share
            part = (capacity_bytes - before.capacity_bytes) / (each.capacity_bytes - before.capacity_bytes)
            return before.hit_share + part * (each.hit_share - before.hit_share)
        before = each
    return before.hit_share if before is not None else 0.0


def findings(seen: Snapshot) -> View:
    """Cards: prompts that break off early for no good reason, those that cost most first."""
    return {
        "rows": [_finding(each) for each in seen.slow.findings[:FINDINGS]],
        "empty": "No prompts were found that share a head, break off early and go on alike.",
    }


def _finding(found: Finding) -> View:
    prompts, model = text.plural(found.prompts, "prompt"), found.label or "a model"
    said: dict[str, Any] = {
        "id": f"{found.key.hex()}/{found.token}",
        "title": KINDS.get(found.kind, KINDS["unknown"]),
        "sub": f"at token {text.count(found.token)}, in {prompts} for {model}",
        "cost": f"{text.count(found.lost_tokens_per_day)} tokens a day computed again",
        "advice": ADVICE.get(found.kind, ADVICE["unknown"]),
    }
    if found.ours_text or found.cached_text:
        said["texts"] = difference(found.ours_text, found.cached_text)
    return said


def difference(ours: str, cached: str) -> View:
    """Both texts, cut into what is alike in front, what differs, and what is alike behind."""
    shorter = min(len(ours), len(cached))
    head = next((i for i in range(shorter) if ours[i] != cached[i]), shorter)
    tail = next((i for i in range(shorter - head) if ours[-1 - i] != cached[-1 - i]), shorter - head)

    def cut(words: str) -> list[str]:
        return [words[:head], words[head : len(words) - tail], words[len(words) - tail :]]

    return {"ours": cut(ours), "cached": cut(cached)}
