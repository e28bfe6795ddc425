"""What the sidecar's control path costs: acquire and release of a known prefix over the Unix socket, nothing copied."""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

TOKENS = 2048
BLOCKS = TOKENS // 16
REPEATS = 7
CALLS = 200
# One page a block: the control path does not depend on how large a block is.
LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=16, head_dim=8, dtype="float32")


def run() -> list[dict[str, object]]:
    """Medians, over REPEATS, of the median of CALLS calls."""
    with tempfile.TemporaryDirectory(prefix="kvt-") as folder:
        uds = Path(folder) / "kv.sock"
        command = [sys.executable, "-m", "kvterrace.kvstore", "serve", "--dram", "64MiB", "--uds", str(uds)]
        command += ["--log-level", "error"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            try:
                return asyncio.run(_measure(f"unix:{uds}"))
            finally:
                server.terminate()


async def _measure(address: str) -> list[dict[str, object]]:
    client = SidecarClient(address, Namespace(weights_digest=b"b" * 32, layout=LAYOUT), client="bench")
    await client.start()
    while not client.connected:
        await asyncio.sleep(0.05)
    tokens = pack_tokens(range(TOKENS))
    given = await client.reserve(tokens, start=0, count=BLOCKS)
    assert await client.commit(given.lease, [0] * BLOCKS)
    both: list[float] = []
    acquires: list[float] = []
    for _ in range(REPEATS):
        rounds = [await _round(client, tokens) for _ in range(CALLS)]
        acquires.append(statistics.median(acquire for acquire, _ in rounds))
        both.append(statistics.median(total for _, total in rounds))
    await client.close()
    of = f"{TOKENS} known tokens over the Unix socket, one at a time; median of {REPEATS} x {CALLS}"
    return [
        {
            "metric": "sidecar.control_ms",
            "value": statistics.median(both),
            "unit": "ms",
            "of": f"acquire + release, {of}",
        },
        {
            "metric": "sidecar.acquire_ms",
            "value": statistics.median(acquires),
            "unit": "ms",
            "of": f"acquire alone, {of}",
        },
    ]


async def _round(client: SidecarClient, tokens: bytes) -> tuple[float, float]:
    """Milliseconds until the acquire was answered, and until the release was."""
    began = time.perf_counter()
    given = await client.acquire(tokens, skip=0, deadline_s=1.0)
    acquired = time.perf_counter()
    assert len(given.slots) == BLOCKS
    await client.release(given.lease)
    return (acquired - began) * 1e3, (time.perf_counter() - began) * 1e3
