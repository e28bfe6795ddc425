"""What the dashboard costs the store's loop: one round of its feed, and a whole sidecar's CPU with pages open.

Pages are open in a headless Chromium, where one is installed.
"""

import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from itertools import takewhile
from pathlib import Path

from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.dashboard.feed import Feed, Sort
from kvterrace.kvstore.dashboard.snapshot import Reader, Settings
from kvterrace.kvstore.events.sight import everything
from kvterrace.kvstore.insight.types import Sample
from kvterrace.kvstore.service.servicer import Servicer
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.types import Miss, Receipt

REPEATS = 5
ROUNDS = 40
FINE, COARSE = 900, 1380  # samples, of a second and of fifteen, as the history keeps them
PAGES = (0, 1, 4)
OBSERVED_S = 5.0
START_S = 60.0
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def run() -> list[dict[str, object]]:
    """Medians over REPEATS of means over ROUNDS; CPU of a sidecar where Chromium and Playwright are installed."""
    rounds = [asyncio.run(_round_ms()) for _ in range(REPEATS)]
    of = f"CPU of the loop for all viewers of a sort, with a full history; median of {REPEATS} x {ROUNDS}"
    rows: list[dict[str, object]] = [
        {"metric": "dashboard.round_ms", "value": statistics.median(rounds), "unit": "ms", "of": of}
    ]
    for pages, cpu_ms in _process().items():
        of = f"process CPU of a sidecar without traffic with {pages} pages open in Chromium, over {OBSERVED_S:.0f} s"
        rows.append({"metric": f"dashboard.cpu_{pages}_pages", "value": cpu_ms, "unit": "ms/s", "of": of})
    return rows


class _Viewer:
    """Of the whole store."""

    sort = Sort("", "15 min")
    sees = staticmethod(everything)

    def show(self, parts: object) -> None:
        pass


class _Traffic:
    """With each look at the clock a second passes, a sample comes and a request is served, after six hours of them."""

    def __init__(self, store: Store) -> None:
        self._store, self._now_s = store, 1_800_000_000.0
        self._samples: deque[Sample] = deque(maxlen=COARSE + FINE)
        for _ in range(COARSE):
            self._pass(15.0)
        for _ in range(FINE):
            self._pass(1.0)
        store.insight.history = self._since  # type: ignore[method-assign]

    def clock(self) -> float:
        self._pass(1.0)
        return self._now_s

    def _pass(self, seconds: float) -> None:
        self._now_s += seconds
        tokens, misses = {"hbm": 300, "dram": 600, "computed": 100}, {"never_seen": 80, "diverged": 20}
        receipt = Receipt("r", tokens, Miss("never_seen"), ttft_s=0.5, time_s=self._now_s)
        self._store.insight.receipts.add(receipt)
        self._samples.append(Sample(self._now_s, seconds, 1, tokens, misses, 0.1, 2.0, 1.0, {}))

    def _since(self, since_s: float = 0.0) -> list[Sample]:
        later = takewhile(lambda each: each.time_s > since_s, reversed(self._samples))
        return list(later)[::-1]


async def _round_ms() -> float:
    store = Store(Arena.anonymous(4 << 20))
    reader = Reader(
        store, Servicer(store, "none", b"b" * 16), Settings("bench"), lambda: "ready", _Traffic(store).clock
    )
    feed = Feed(reader, rest=lambda _: asyncio.sleep(0))
    for _ in range(4):
        feed.join(_Viewer())
    await _until(feed, 1)  # which reads the whole history
    first_s, rounds = feed.spent_s, feed.rounds
    await _until(feed, rounds + ROUNDS)
    spent_s, rounds = feed.spent_s - first_s, feed.rounds - rounds
    await feed.stop()
    store.close()
    return spent_s / rounds * 1e3


async def _until(feed: Feed, rounds: int) -> None:
    while feed.rounds < rounds:  # noqa: ASYNC110  # it has no event to wait for
        await asyncio.sleep(0)


def _process() -> dict[int, float]:
    """Milliseconds of CPU a second, by pages that are open; empty without a browser."""
    try:
        from playwright.sync_api import sync_playwright  # noqa: PLC0415  # this part only
    except ImportError:
        return {}
    browser = Path("/usr/bin/chromium")
    if not browser.exists():
        return {}
    with tempfile.TemporaryDirectory(prefix="kvt-") as folder:
        process, url = _sidecar(Path(folder))
        try:
            with sync_playwright() as playwright:
                opened = playwright.chromium.launch(executable_path=browser, args=list(FLAGS))
                cpu: dict[int, float] = {}
                for pages in PAGES:
                    while sum(len(each.pages) for each in opened.contexts) < pages:
                        page = opened.new_context().new_page()
                        page.goto(url)
                        page.locator("#kv-bar, h1").first.wait_for()
                    time.sleep(2.0)  # what a page costs as it opens
                    cpu[pages] = _cpu_ms(process.pid)
                opened.close()
                return cpu
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


def _sidecar(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A process, and where its dashboard is."""
    said = folder / "said"
    where = ["--uds", str(folder / "kv.sock"), "--arena-dir", str(folder), "--http", "127.0.0.1:0"]
    with said.open("wb") as out:
        command = [sys.executable, "-m", "kvterrace.kvstore", "serve", "--dram", "8MiB", *where]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    end = time.monotonic() + START_S
    while "http on" not in said.read_text():
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"the sidecar did not start: {said.read_text()}")
        time.sleep(0.05)
    return process, said.read_text().split("http on ")[1].split()[0]


def _cpu_ms(pid: int) -> float:
    began_s, began = time.monotonic(), _ticks(pid)
    time.sleep(OBSERVED_S)
    return (_ticks(pid) - began) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began_s) * 1e3


def _ticks(pid: int) -> int:
    """utime + stime."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
