"""Traces made up on the spot, and small setups to replay them."""

import json
import random
from types import SimpleNamespace

import pytest
from kvterrace.kvstore.placement.policies import make_policy
from kvterrace.kvstore.sim.outcome import Setup
from kvterrace.kvstore.sim.trace import Trace, read_trace


def row(ids, at_ms=0.0, tokens_per_block=16, **fields) -> dict:
    return {
        "timestamp": at_ms,
        "input_length": len(ids) * tokens_per_block,
        "output_length": 1,
        "hash_ids": list(ids),
        **fields,
    }


def conversations(seed: int, requests: int, *, spaces: int = 1) -> list[dict]:
    """Rows of a few families that share a head, with turns that grow, one-off prompts in between; chained ids."""
    rng, rows, fresh = random.Random(seed), [], 1000
    talks: list[tuple[int, list[int]]] = []
    for number in range(requests):
        kind = rng.random()
        if kind < 0.6 and talks:
            space, ids = talks[rng.randrange(max(0, len(talks) - 12), len(talks))]
            ids = list(ids)
        else:
            space = rng.randrange(spaces)
            ids = [space * 100 + i for i in range(rng.choice((0, 2, 5)))]
        grown = ids + list(range(fresh, fresh + rng.randrange(1, 9)))
        fresh += 10
        talks.append((space, grown))
        rows.append(row(grown, at_ms=number * 250.0, namespace=str(space)))
    return rows


@pytest.fixture
def trace_of(tmp_path):
    """Write rows as a trace file and read it; `raw` lines are put in front as they are."""
    made = 0

    def make(rows, raw: bytes = b"") -> Trace:
        nonlocal made
        made += 1
        path = tmp_path / f"trace-{made}.jsonl"
        path.write_bytes(raw + b"".join(json.dumps(each).encode() + b"\n" for each in rows))
        return read_trace(path)

    return make


@pytest.fixture
def setup_of():
    """A Setup with little in it but sizes."""

    def make(dram: int, nvme: int = 0, policy: str = "lru", **fields) -> Setup:
        options = {"block_tokens": 16, "block_bytes": 4096} | fields
        return Setup(make_policy(policy), dram_blocks=dram, nvme_blocks=nvme, **options)

    return make


@pytest.fixture
def rows_of():
    """`conversations` and `row`, by name: test modules cannot import this file."""
    return SimpleNamespace(row=row, conversations=conversations)
