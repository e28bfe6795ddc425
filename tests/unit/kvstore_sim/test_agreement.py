"""The simulator says what a real store would do: the same trace through both, compared request by request."""

import asyncio
import itertools

import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.below import Below
from kvterrace.kvstore.placement import ADMISSIONS
from kvterrace.kvstore.placement.policies import POLICY_NAMES, make_policy
from kvterrace.kvstore.sim.replay import Replay
from kvterrace.kvstore.store import Store
from kvterrace.kvstore.tiers import DramTier, Rejected, Usage
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import BlockLayout, Namespace

pytestmark = pytest.mark.unit

# One token a block, its number in the trace: some policies hash the tokens, and so hash the same in both.
LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=1, head_dim=1024, dtype="float16")
PAYLOAD = np.zeros(4096, dtype=np.uint8)
CHECKSUM = xxhash.xxh3_64_intdigest(PAYLOAD.data)
RECORD_BYTES = 8192  # a header page and a block


class Shelf(DramTier):
    """A lower tier of so many blocks, which leaves it to the store what goes, as NVMe does."""

    def __init__(self, blocks: int) -> None:
        super().__init__(1 << 40, name="nvme")
        self.blocks = blocks

    async def put(self, records, *, deadline_s):
        return [
            (await super(Shelf, self).put([each], deadline_s=deadline_s))[0]
            if self.usage().blocks < self.blocks
            else Rejected("full")
            for each in records
        ]

    def usage(self) -> Usage:
        kept = super().usage().blocks
        limit = self.blocks * RECORD_BYTES
        return Usage(limit, kept * RECORD_BYTES, kept, live_bytes=kept * RECORD_BYTES, live_limit_bytes=limit)

    async def flush(self, *, deadline_s: float) -> bool:
        return True

    async def clear(self, fingerprint) -> int:
        raise NotImplementedError

    def refuses(self, fingerprint) -> str:
        return ""

    def devices(self):
        return ()

    def codec(self):
        return None


async def run_store(trace, pages: int, policy: str, below: Below | None = None) -> list[tuple[int, int]]:
    """What an engine that keeps nothing itself gets for each request: blocks from DRAM, blocks from the tier below."""
    now = [0.0]
    store = Store(
        Arena.anonymous(pages * 4096), policy=make_policy(policy), below=below or Below(), clock=lambda: now[0]
    )
    sessions = [store.open_session(Namespace(f"weights-{s}".encode(), LAYOUT), client="test") for s in trace.spaces]
    found = []
    for request in trace.requests:
        now[0] = request.at_s
        session, tokens = sessions[request.space], request.blocks
        got = await session.acquire(tokens, skip=0, deadline_s=60)
        hits = [got.tiers.get(tier, 0) for tier in ("dram", "nvme")]
        found.append(tuple(hits))
        await store.flush(60)
        if sum(hits) < request.count:
            reserved = session.reserve(tokens, start=sum(hits), count=request.count - sum(hits))
            if reserved.lease:
                for ref in reserved.slots:
                    session.arena.block(ref.slot)[:] = 0
                assert session.commit(reserved.lease, [CHECKSUM] * len(reserved.blocks))
        session.release(got.lease)
        await store.flush(60)
    store.check()
    await store.stop(10)
    store.close()
    return found


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize(("pages", "spaces"), [(24, 1), (200, 1), (60, 3)])
def test_dram_alone_hits_what_a_store_hits(trace_of, setup_of, rows_of, policy, pages, spaces):
    trace = trace_of(rows_of.conversations(pages + spaces, 150, spaces=spaces))
    run = Replay(setup_of(pages, policy=policy))
    ours = [run.step(request) for request in trace.requests]
    run.check()
    theirs = asyncio.run(run_store(trace, pages, policy))
    assert ours == theirs
    assert run.outcome.evictions["dram"] > 0 or pages == 200
    assert run.outcome.hit_blocks["dram"] > 0


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize(
    ("policy", "admission", "spaces", "sizes"),
    [
        *itertools.product(POLICY_NAMES, ["all"], [2], [(40, 90)]),
        *itertools.product(["lru"], ADMISSIONS, [1], [(60, 75)]),
    ],
)
def test_with_nvme_below_hits_what_a_store_hits(
    trace_of, setup_of, rows_of, policy, admission, spaces, sizes, exclusive
):
    dram, nvme = sizes
    trace = trace_of(rows_of.conversations(dram, 200, spaces=spaces))
    run = Replay(setup_of(dram, nvme, policy, admission=ADMISSIONS[admission], exclusive=exclusive))
    ours = [run.step(request) for request in trace.requests]
    run.check()
    below = Below(tier=Shelf(nvme), admission=ADMISSIONS[admission](), exclusive=exclusive, backlog_share=1.0)
    theirs = asyncio.run(run_store(trace, dram, policy, below))
    assert ours == theirs
    assert run.outcome.hit_blocks["nvme"] > 0


def test_on_a_real_disk_it_is_the_same(trace_of, setup_of, rows_of, tmp_path):
    trace = trace_of(rows_of.conversations(9, 100))
    run = Replay(setup_of(40, 100_000))
    ours = [run.step(request) for request in trace.requests]
    tier = NvmeTier.open([NvmePath(tmp_path / "nvme", 64 << 20, min_free_bytes=0)], segment_bytes=1 << 20)
    theirs = asyncio.run(run_store(trace, 40, "lru", Below(tier=tier, backlog_share=1.0)))
    assert ours == theirs
    assert run.outcome.hit_blocks["nvme"] > 0
