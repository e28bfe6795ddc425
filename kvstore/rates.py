"""Rates: what a sidecar does a second, from two of its answers, as a frame that is shown."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..proto import kv_pb2 as pb
from .prefix_view import one_line, plain_table
from .status_view import duration, format_bytes, plain
from .words import COMPUTED, in_order

WORST = 6  # reasons of misses that are shown
Sampled = tuple[pb.StatusReply, pb.ReceiptsReply]


@dataclass(frozen=True, slots=True)
class Frame:
    """A second: requests (receipts); by tier or reason, hit and missed (tokens that engines asked the store for), read
    and written (bytes). seconds: that these are measured over; 0 = the sidecar has started anew, and there are none.
    trouble: why the last question had no answer."""

    address: str
    status: pb.StatusReply
    receipts: pb.ReceiptsReply
    seconds: float
    requests: float
    hit: Mapping[str, float]
    missed: Mapping[str, float]
    read: Mapping[str, float]
    written: Mapping[str, float]
    trouble: str = ""

    @classmethod
    def between(cls, before: Sampled, now: Sampled, address: str, trouble: str = "") -> "Frame":
        """From two samples of one sidecar."""
        (old, old_receipts), (status, receipts) = before, now
        seconds = status.uptime_s - old.uptime_s if status.boot_id == old.boot_id else 0.0

        def rate(name: str) -> dict[str, float]:
            was, is_now = getattr(old.counters, name), getattr(status.counters, name)
            return {key: (is_now[key] - was.get(key, 0)) / seconds for key in is_now} if seconds > 0 else {}

        requests = (receipts.total - old_receipts.total) / seconds if seconds > 0 else 0.0
        hit, missed, read, written = map(rate, ("hit_tokens", "miss_tokens", "read_bytes", "written_bytes"))
        return cls(address, status, receipts, seconds, requests, hit, missed, read, written, trouble)


def frame_json(frame: Frame) -> dict[str, object]:
    """For programs."""
    return {
        "address": frame.address,
        "seconds": frame.seconds,
        "requests_per_s": frame.requests,
        "hit_tokens_per_s": dict(frame.hit),
        "miss_tokens_per_s": dict(frame.missed),
        "read_bytes_per_s": dict(frame.read),
        "written_bytes_per_s": dict(frame.written),
        "tiers": plain(frame.status.tiers),
        "receipts": plain(frame.receipts.receipts),
    }


def frame_tables(frame: Frame) -> Iterator[RenderableType]:
    """For people, from top to bottom."""
    status = frame.status
    hit, missed = sum(frame.hit.values()), sum(frame.missed.values())
    share = f", {hit / (hit + missed):.1%} of what was asked for" if hit + missed else ""
    yield Text(
        f"kvterrace {status.package_version} at {frame.address}, up {duration(status.uptime_s)}, "
        f"{len(status.sessions):,} sessions, {frame.requests:,.1f} requests/s, {hit:,.0f} tokens/s hit{share}"
    )
    if frame.trouble:
        yield Text(f"{frame.trouble}; what follows is the last that was known", style="bold")
    yield Text()
    yield _tiers(frame)
    yield Text()
    yield _misses(frame)
    yield Text()
    yield _receipts(frame.receipts)


def _tiers(frame: Frame) -> Table:
    columns = ("tier", "full", "used", "of", "hit tokens/s", "read/s", "written/s", "out of use")
    table = plain_table("tiers", *columns, words=("tier", "full", "out of use"))
    for tier in frame.status.tiers:
        share = tier.used_bytes / tier.capacity_bytes if tier.capacity_bytes else 0.0
        bad = [each.path for each in tier.devices if each.state != "ok"]
        table.add_row(
            tier.name,
            ProgressBar(total=1.0, completed=min(share, 1.0), width=20),
            format_bytes(tier.used_bytes),
            format_bytes(tier.capacity_bytes) if tier.capacity_bytes else "-",
            f"{frame.hit.get(tier.name, 0.0):,.0f}",
            format_bytes(int(frame.read.get(tier.name, 0.0))),
            format_bytes(int(frame.written.get(tier.name, 0.0))),
            ", ".join(bad) or "-",
        )
    return table


def _misses(frame: Frame) -> Table:
    table = plain_table("misses", "why", "tokens/s", "tokens in all", words=("why",))
    total = frame.status.counters.miss_tokens
    order = sorted(total, key=lambda reason: (-frame.missed.get(reason, 0.0), -total[reason]))
    for reason in order[:WORST]:
        table.add_row(reason, f"{frame.missed.get(reason, 0.0):,.0f}", f"{total[reason]:,}")
    return table


def _receipts(receipts: pb.ReceiptsReply) -> Table:
    columns = ("at", "request", "prompt", "TTFT", "reused", "why")
    table = plain_table(f"last requests, of {receipts.total:,}", *columns, words=("request", "reused", "why"))
    for each in receipts.receipts:
        total = sum(each.tokens.values())
        reused = ", ".join(f"{tier} {each.tokens[tier]:,}" for tier in in_order(each.tokens)) or "nothing"
        at = time.strftime("%H:%M:%S", time.localtime(each.time_s)) if each.time_s else "-"
        reason = (
            each.miss.reason if each.HasField("miss") else "all found" if total != each.tokens.get(COMPUTED, 0) else "-"
        )
        ttft = f"{each.ttft_s * 1000:,.0f} ms" if each.ttft_s else "-"
        table.add_row(at, one_line(each.request_id, 28), f"{total:,}", ttft, reused, reason)
    return table
