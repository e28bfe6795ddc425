"""A node that lends prompt 1 until it is killed: BLOCKS, BLOCK_BYTES. Says its address on stdout."""

import asyncio
import importlib.util
import sys
from pathlib import Path

from kvterrace.kvstore.peer.bulk_server import BulkServer
from kvterrace.kvstore.peer.fetching import Fetching
from kvterrace.kvstore.peer.tickets import Tickets


def load():
    spec = importlib.util.spec_from_file_location("peer_bench", Path(__file__).with_name("peer_bench.py"))
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer_bench"] = module
    spec.loader.exec_module(module)
    return module


async def main() -> None:
    bench, (blocks, block_bytes) = load(), map(int, sys.argv[1:])
    tickets = Tickets()
    bulk = BulkServer("127.0.0.1", 0, tickets)
    await bulk.start()
    lender = bench.MemoryLender(bench.prompt(1, blocks), block_bytes=block_bytes)
    async with bench.Server(bench.PeerServicer(Fetching(lender, tickets, bulk.address))) as server:
        sys.stdout.write(server.address + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


asyncio.run(main())
