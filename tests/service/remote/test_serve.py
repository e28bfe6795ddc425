"""`kvterrace serve --remote`: what one process computed, another serves after it was killed."""

import asyncio
import contextlib
import importlib.util
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

pytestmark = pytest.mark.service

SIDECAR = Path(__file__).parents[1] / "sidecar" / "conftest.py"


def _load():
    spec = importlib.util.spec_from_file_location("sidecar_bench", SIDECAR)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sidecar_bench"] = module
    spec.loader.exec_module(module)
    return module


sidecar = _load()
LAYOUT, Served, Tools = sidecar.LAYOUT, sidecar.Served, sidecar.Tools
B = sidecar.BLOCK_TOKENS


@pytest.fixture
def serve_in():
    with contextlib.ExitStack() as stack:

        def make(*flags):
            served = Served(stack.enter_context(sidecar.scratch()))
            stack.callback(served.close)
            return served.start(*flags)

        yield make


@contextlib.asynccontextmanager
async def client_of(served):
    space = sidecar.Namespace(weights_digest=b"w" * 32, layout=LAYOUT, label="tiny")
    client = sidecar.SidecarClient(served.address, space, client="test")
    await client.start()
    try:
        yield client
    finally:
        await client.close()


async def saved_there(served, blocks: int) -> None:
    async def there() -> bool:
        # Not the tier's own count: a block is in it from before it is written, so that the cap holds.
        return (await served.status()).counters.demoted_blocks["remote"] == blocks

    await Tools.until(there, 10.0)


async def test_a_prompt_outlives_the_node_that_computed_it(serve_in, tmp_path):
    remote = ("--remote", f"file://{tmp_path}/kv", "--remote-capacity", "64MiB")
    a = serve_in(*remote)
    tokens = Tools.tokens(12)
    async with client_of(a) as client:
        assert await Tools.save(client, tokens)
        await saved_there(a, 12)
    a.kill()
    b = serve_in(*remote, "--http", "127.0.0.1:0")
    async with client_of(b) as client:
        given = await client.acquire(tokens, skip=0, deadline_s=5.0)
        assert given.tiers == {"remote": 12 * B}, (given.reason, given.miss)
        assert Tools.read(given) == [Tools.content(block) for block in range(12)]
        await client.release(given.lease)
        metrics = await asyncio.to_thread(
            lambda: urllib.request.urlopen(b.announced("http") + "/metrics").read().decode()
        )
    size = 12 * LAYOUT.block_bytes
    for line in (
        f'kvterrace_store_tier_read_bytes_total{{tier="remote"}} {size}',
        'kvterrace_store_hit_tokens_total{tier="remote"} 192',
        'kvterrace_remote_lookups_total{outcome="found"} 1',
        'kvterrace_remote_up{operation="read"} 1',
        'kvterrace_store_tier_capacity_bytes{tier="remote"} 6.7108864e+07',
    ):
        assert line in metrics, line


async def test_a_node_whose_store_is_not_there_serves_without_it_and_stops(serve_in):
    served = serve_in("--remote", "redis://127.0.0.1:1", "--remote-deadline", "0.5")
    async with client_of(served) as client:
        assert await Tools.save(client, Tools.tokens(4))
        given = await client.acquire(Tools.tokens(4), skip=0, deadline_s=5.0)
        assert given.tiers == {"dram": 4 * B}
        await client.release(given.lease)
    began = time.monotonic()
    served.close()
    assert time.monotonic() - began < 9.0


HUNG = """
import asyncio, threading
from pathlib import Path
from kvterrace.kvstore.tiers.remote import Directory, OnThreads, RemoteTier, Trouble

class Hung(Directory):
    def exists(self, name):
        threading.Event().wait()

async def main():
    tier = RemoteTier(OnThreads(Hung(Path("/nowhere"), 1 << 20)))
    try:
        await tier.has(bytes(32), [bytes(32)], [0], deadline_s=0.1)
    except Trouble as trouble:
        print(trouble.reason)
    await tier.close()

asyncio.run(main())
"""


def test_a_process_ends_although_a_thread_hangs_in_a_dead_mount():
    done = subprocess.run(
        [sys.executable, "-c", HUNG], capture_output=True, text=True, timeout=60, env=sidecar.environment(), check=True
    )
    assert done.stdout == "deadline\n"
