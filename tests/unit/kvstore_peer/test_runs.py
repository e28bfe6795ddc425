"""Runs: what is asked for together, what cannot be asked for, and which offers are believed."""

import dataclasses

import numpy as np
import pytest
from kvterrace.kvstore.peer import runs
from kvterrace.kvstore.peer.client import PeerError
from kvterrace.kvstore.peer.runs import Run, runs_of

pytestmark = pytest.mark.unit


def test_consecutive_blocks_of_a_prompt_are_one_run_wherever_the_batch_changes_prompt_a_new_one_begins(peer_bench):
    one, other = peer_bench.prompt(1, 5), peer_bench.prompt(2, 3)
    batch = [*peer_bench.ask(one, 2), *peer_bench.ask(other), *peer_bench.ask(one)[:2]]
    cut = runs_of(batch)
    assert [(run.at, run.first, len(run.blocks)) for run in cut] == [(0, 2, 3), (3, 0, 3), (6, 0, 2)]
    assert [run.tokens for run in cut] == [one, other, one[: 2 * peer_bench.B * 4]]


def test_a_gap_or_another_order_ends_a_run(peer_bench):
    blocks = peer_bench.ask(peer_bench.prompt(1, 5))
    batch = [blocks[0], blocks[2], blocks[3], blocks[1], blocks[4]]
    assert [[each.ordinal for each in run.blocks] for run in runs_of(batch)] == [[0], [2, 3], [1], [4]]


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": b""},
        {"tokens": b""},
        {"tokens": b"x" * 16},
        {"tokens": b"x" * 15},
        {"ordinal": 4},
        {"ordinal": -1},
        {"block_bytes": 0},
        {"into": np.zeros(10, np.uint8)},
    ],
)
def test_a_question_that_contradicts_itself_is_never_asked(peer_bench, other):
    blocks = peer_bench.ask(peer_bench.prompt(1, 3))
    blocks[1] = dataclasses.replace(blocks[1], **other)
    assert [[each.ordinal for each in run.blocks] for run in runs_of(blocks)] == [[0], [2]]


@pytest.mark.parametrize("other", [{"fingerprint": b"o" * 32}, {"parent": b"p" * 32}, {"block_bytes": 5}])
def test_what_does_not_hang_together_is_asked_apart(peer_bench, other):
    blocks = peer_bench.ask(peer_bench.prompt(1, 2))
    blocks[1] = dataclasses.replace(blocks[1], **other)
    assert len(runs_of(blocks)) == 2


def test_a_run_is_bounded(peer_bench, monkeypatch):
    monkeypatch.setattr(runs, "MAX_BLOCKS", 4)
    assert [len(run.blocks) for run in runs_of(peer_bench.ask(peer_bench.prompt(1, 10)))] == [4, 4, 2]


def test_an_offer_of_the_first_blocks_is_believed(peer_bench):
    blocks = peer_bench.ask(peer_bench.prompt(1, 3))
    run = Run(0, blocks)
    assert len(run.checksums(peer_bench.offer_of(blocks).offer)) == 3
    assert len(run.checksums(peer_bench.offer_of(blocks[:2]).offer)) == 2
    assert run.checksums(peer_bench.offer_of(blocks, count=0).offer) == []


@pytest.mark.parametrize(
    "other",
    [
        {"count": 2},
        {"count": 4},
        {"count": (1 << 32) - 1},
        {"block_bytes": 1},
        {"block_bytes": 0},
        {"block_bytes": (1 << 64) - 1},
        {"keys": b""},
        {"keys": b"k" * 96},
        {"checksums": b""},
        {"checksums": bytes(23)},
        {"checksums": bytes(32)},
    ],
)
def test_any_other_offer_is_against_the_protocol(peer_bench, other):
    blocks = peer_bench.ask(peer_bench.prompt(1, 3))
    with pytest.raises(PeerError, match="protocol"):
        Run(0, blocks).checksums(peer_bench.offer_of(blocks, **other).offer)
