"""What a replay counts: tokens once, bytes where they move, seconds by the speeds given; admission and mode felt."""

import numpy as np
import pytest
from kvterrace.kvstore.placement import CostBased, SecondHit
from kvterrace.kvstore.placement.policies import POLICY_NAMES
from kvterrace.kvstore.sim.capacity import parse_capacity, parse_nvme_capacity
from kvterrace.kvstore.sim.outcome import Speeds
from kvterrace.kvstore.sim.replay import Replay, replay
from kvterrace.kvstore.tiers.nvme.log import LIVE_SHARE

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("policy", POLICY_NAMES)
@pytest.mark.parametrize(("nvme", "exclusive"), [(0, False), (90, False), (90, True)])
def test_tokens_blocks_and_bytes_add_up_after_every_request(trace_of, rows_of, setup_of, policy, nvme, exclusive):
    trace = trace_of(rows_of.conversations(3, 120, spaces=2))
    run = Replay(setup_of(30, nvme, policy, exclusive=exclusive))
    for request in trace.requests:
        run.step(request)
        run.check()
    done = run.outcome
    assert (done.requests, done.blocks, done.input_tokens) == (120, trace.blocks, trace.input_tokens)
    assert done.hit_blocks["nvme"] * 4096 == done.read_bytes["nvme"]
    came, went = done.written_bytes["dram"] // 4096, done.evictions["dram"]
    assert came - went == run.dram.used_blocks
    if nvme and not exclusive:
        assert done.written_bytes["nvme"] // 4096 - done.evictions["nvme"] == run.nvme.used_blocks


def test_a_partial_last_block_is_worth_its_tokens_only(trace_of, setup_of):
    lines = [{"timestamp": i, "input_length": 40, "hash_ids": [1, 2, 3], "block_tokens": 16} for i in range(2)]
    done = replay(trace_of(lines), setup_of(10))
    assert (done.hit_blocks["dram"], done.hit_tokens["dram"], done.computed_tokens) == (3, 40, 40)


def test_a_prompt_larger_than_the_cache_keeps_its_beginning(trace_of, rows_of, setup_of):
    trace = trace_of([rows_of.row(range(50)), rows_of.row(range(50))])
    run = Replay(setup_of(20))
    assert [run.step(request) for request in trace.requests] == [(0, 0), (20, 0)]


def test_what_nvme_has_outlives_dram(trace_of, rows_of, setup_of):
    heads = [list(range(start, start + 10)) for start in (0, 100, 200, 300)]
    trace = trace_of([rows_of.row(ids) for ids in [*heads, heads[0]]])
    assert replay(trace, setup_of(20)).hit_blocks.total() == 0
    assert replay(trace, setup_of(20, 100)).hit_blocks == {"dram": 0, "nvme": 10}


def test_exclusive_keeps_one_copy_so_that_two_tiers_hold_more(trace_of, rows_of, setup_of):
    """Prompts in turn, together larger than either tier and smaller than both."""
    heads = [list(range(100 * i, 100 * i + 4)) for i in range(13)]
    trace = trace_of([rows_of.row(ids) for _ in range(4) for ids in heads])
    inclusive = replay(trace, setup_of(32, 36))
    exclusive = replay(trace, setup_of(32, 36, exclusive=True, spare_share=0.25))
    assert inclusive.hit_blocks.total() == 0
    assert exclusive.hit_blocks.total() > trace.blocks / 3


def test_second_hit_writes_one_off_prompts_to_no_disk(trace_of, rows_of, setup_of):
    rows = [rows_of.row([1, 2]), *(rows_of.row([1, 2, 100 + i]) for i in range(30))]
    done = replay(trace_of(rows), setup_of(100, 100, admission=SecondHit))
    assert done.written_bytes["nvme"] == 2 * 4096
    assert done.refused["not_admitted"] >= 30


def test_cost_admission_fills_half_then_refuses_what_loads_slower_than_it_computes(trace_of, rows_of, setup_of):
    rows = [rows_of.row([i]) for i in range(90)]
    slow = Speeds(prefill_tokens_per_s=1e6, nvme_bytes_per_s=1e6)
    done = replay(trace_of(rows), setup_of(100, 100, admission=CostBased, speeds=slow))
    assert done.written_bytes["nvme"] == 50 * 4096
    fast = Speeds(prefill_tokens_per_s=1e3, nvme_bytes_per_s=1e9)
    done = replay(trace_of(rows), setup_of(100, 100, admission=CostBased, speeds=fast))
    assert done.written_bytes["nvme"] == 90 * 4096


def test_a_disk_slower_than_computing_is_left_alone_and_said(trace_of, rows_of, setup_of):
    heads = [list(range(start, start + 10)) for start in (0, 100, 200, 300)]
    trace = trace_of([rows_of.row(ids) for ids in [*heads, heads[0]]])
    slow = Speeds(prefill_tokens_per_s=1e6, nvme_bytes_per_s=1e6)
    done = replay(trace, setup_of(20, 100, speeds=slow))
    assert done.hit_blocks["nvme"] == 0
    assert done.slower_to_load_blocks == 10


def test_seconds_follow_from_the_speeds(trace_of, rows_of, setup_of):
    trace = trace_of([rows_of.row(range(100)), rows_of.row(range(100))])
    speeds = Speeds(prefill_tokens_per_s=1000, dram_bytes_per_s=1e6)
    done = replay(trace, setup_of(100, speeds=speeds))
    assert done.compute_s == pytest.approx(1.6, rel=1e-3)
    assert done.load_s == pytest.approx(0.4096, rel=1e-3)
    assert done.saved_s == pytest.approx(1.6 - 0.4096, rel=1e-3)
    assert replay(trace, setup_of(100)).saved_s == 0.0


def test_agents_are_told_apart(trace_of, rows_of, setup_of):
    trace = trace_of([rows_of.row([1], agent="a"), rows_of.row([1], agent="b"), rows_of.row([2], agent="b")])
    done = replay(trace, setup_of(10))
    tokens = {name: (done.agent_hit_tokens[i], done.agent_tokens[i]) for i, name in enumerate(trace.agents)}
    assert tokens == {"a": (0, 16), "b": (16, 32)}


def test_time_is_the_traces_own(trace_of, rows_of, setup_of):
    trace = trace_of([rows_of.row([1], at_ms=1000), rows_of.row([2], at_ms=61_000)])
    run = Replay(setup_of(10))
    for request in trace.requests:
        run.step(request)
    index = run.dram.index(0)
    assert np.sort(index.col("last_use")[list(index.iterate())]).tolist() == [0.0, 60.0]


@pytest.mark.parametrize(
    ("text", "blocks"), [("8GiB", 2048), ("5859blocks", 5859), (" 1 block ", 1), ("4MiB", 1), ("9MiB", 2)]
)
def test_capacities_are_sizes_or_blocks(text, blocks):
    assert parse_capacity(text, 4 << 20).blocks == blocks


@pytest.mark.parametrize("text", ["3MiB", "0blocks", "-1blocks", "blocks", "many", "8GiX", ""])
def test_a_capacity_that_holds_nothing_is_refused(text):
    with pytest.raises(ValueError):
        parse_capacity(text, 4 << 20)


def test_an_nvme_path_holds_less_than_its_size_but_the_blocks_one_asks_for():
    assert parse_nvme_capacity("10GiB", 4 << 20).blocks == int(9.5 * 2**30 * LIVE_SHARE) // ((4 << 20) + 4096)
    assert parse_nvme_capacity("100blocks", 4 << 20).blocks == 100
    with pytest.raises(ValueError, match="no room"):
        parse_nvme_capacity("512MiB", 4096)
