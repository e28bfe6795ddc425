"""What the sidecar's control path costs: acquire and release of a known prefix over the Unix socket, nothing copied."""

import asyncio
import statistics
import time

from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import pack_tokens

from ._common import sidecar

TOKENS = 2048
BLOCKS = TOKENS // 16
REPEATS = 7
CALLS = 200
# One page a block: the control path does not depend on how large a block is.
LAYOUT = BlockLayout(kv_heads=2, layers=2, planes=2, block_tokens=16, head_dim=8, dtype="float32")


def run() -> list[dict[str, object]]:
    """Medians, over REPEATS, of the median of CALLS calls."""
    with sidecar("64MiB") as address:
        return asyncio.run(_measure(address))


async def _measure(address: str) -> list[dict[str, object]]:
    client = SidecarClient(address, Namespace(weights_digest=b"b" * 32, layout=LAYOUT), client="bench")
    await client.start()
    tokens = pack_tokens(range(TOKENS))
    given = await client.reserve(tokens, start=0, count=BLOCKS)
    assert await client.commit(given.lease, [0] * BLOCKS)
    medians: list[float] = []
    for _ in range(REPEATS):
        medians.append(statistics.median([await _round(client, tokens) for _ in range(CALLS)]))
    await client.close()
    of = f"acquire + release, {TOKENS} known tokens over the Unix socket, one by one; median of {REPEATS} x {CALLS}"
    return [{"metric": "sidecar.control_ms", "value": statistics.median(medians), "unit": "ms", "of": of}]


async def _round(client: SidecarClient, tokens: bytes) -> float:
    """Milliseconds of one acquire and release. The release is not answered: the next acquire waits for its work."""
    began = time.perf_counter()
    given = await client.acquire(tokens, skip=0, deadline_s=1.0)
    assert len(given.slots) == BLOCKS
    await client.release(given.lease)
    return (time.perf_counter() - began) * 1e3
