"""Pictures of the dashboard for the docs: `python deploy/screenshots.py MODEL [MINUTES]` writes
docs/images/dashboard-*.png.

Runs the demo's servers (a sidecar and two replicas of the model), has colleagues ask about a few documents for some
minutes, and looks at the sidecar's dashboard with a headless Chromium. Needs the extras engine, charts and dev.
"""

import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvterrace.engine.demo.client import Replica
from kvterrace.engine.demo.host import DemoOptions, Host
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"color_scheme": "light", "viewport": {"width": 1440, "height": 1000}},
    "dark": {"color_scheme": "dark", "viewport": {"width": 1440, "height": 1000}},
    "phone": {"color_scheme": "light", "viewport": {"width": 390, "height": 844}, "device_scale_factor": 2},
}
MAX_BYTES = 300_000
QUESTIONS = (
    "What is this about?",
    "Name one rule in it.",
    "Who is it for?",
    "What should a newcomer do first?",
    "What does it promise?",
    "What does it refuse?",
)
DOCUMENT_CHARACTERS = 1600  # about 400 tokens


def documents() -> list[str]:
    """Pieces of this project's own texts."""
    text = "\n".join((ROOT / name).read_text() for name in ("CONTRIBUTING.md", "docs/decisions.md", "docs/security.md"))
    return [text[i : i + DOCUMENT_CHARACTERS] for i in range(0, 9 * DOCUMENT_CHARACTERS, DOCUMENT_CHARACTERS)]


def ask_around(replica: Replica, seed: int, until_s: float) -> None:
    """What one replica's users ask: mostly about the same few documents, some of them with the time on top."""
    rng, texts = random.Random(seed), documents()
    while time.monotonic() < until_s:
        text = texts[min(int(rng.expovariate(0.6)), len(texts) - 1)]
        if rng.random() < 0.2:
            text = f"The time is {time.strftime('%Y-%m-%d %H:%M:%S')}.\n{texts[0]}"
        if rng.random() < 0.25:
            replica.clear_hbm()
        replica.ask(text, rng.choice(QUESTIONS), 6)
        time.sleep(rng.uniform(0.0, 1.0))


def show(browser: Browser, url: str, name: str) -> Path:
    """One picture. It says what it takes when it is larger than docs should carry."""
    context = browser.new_context(**LOOKS[name])
    page = context.new_page()
    page.goto(url)
    for each in ("#kv-requests tbody tr", "#kv-traffic svg", "#kv-curve svg"):  # charts come last
        page.locator(each).first.wait_for()
    page.wait_for_timeout(6000)  # a round of what is read every few seconds
    if name != "phone":
        page.set_viewport_size({"width": 1440, "height": page.evaluate("document.documentElement.scrollHeight")})
    file = IMAGES / f"dashboard-{name}.png"
    page.screenshot(path=file)
    context.close()
    with Image.open(file) as picture:  # few colours: a third of the bytes
        picture.convert("RGB").quantize(160, dither=Image.Dither.NONE).save(file, optimize=True)
    size = file.stat().st_size
    print(f"{file.relative_to(ROOT)}: {size:,} bytes{' - too large' if size > MAX_BYTES else ''}")
    return file


def main() -> int:
    if not 2 <= len(sys.argv) <= 3:
        print(__doc__, file=sys.stderr)
        return 2
    model, minutes = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) == 3 else 4.0
    scratch = Path(tempfile.mkdtemp(prefix="kvterrace-pictures-"))
    IMAGES.mkdir(exist_ok=True)
    tokenizer = scratch / "tokenizer.json"
    command = [sys.executable, "-m", "kvterrace.kvstore", "tokenizer", str(model), "--out", str(tokenizer)]
    subprocess.run(command, check=True)
    flags = ["--text", str(tokenizer), "--gpu-price", "2.50", "--node", "gpu-host-1"]
    host = Host(DemoOptions(model, (), keep=True, dram="256MiB", nvme="1GiB"), scratch, flags=flags)
    try:
        host.start(print)
        serve(host, minutes * 60)
    finally:
        host.close()
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


def serve(host: Host, seconds: float) -> None:
    """Some minutes of questions; the pictures are made while they go on."""
    end = time.monotonic() + seconds + 45.0
    users = [
        threading.Thread(target=ask_around, args=(replica, seed, end), daemon=True)
        for seed, replica in enumerate(host.replicas.values())
    ]
    for each in users:
        each.start()
    time.sleep(seconds)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    take: Callable[..., Browser]
    with sync_playwright() as playwright:
        take = playwright.chromium.launch
        browser = take(executable_path=chromium, args=list(FLAGS)) if chromium else take(args=list(FLAGS))
        for name in LOOKS:
            show(browser, f"http://{host.dashboard}/", name)
        browser.close()
    for each in users:
        each.join()


if __name__ == "__main__":
    sys.exit(main())
