"""Admission saves writes without ever leaving a tier empty."""

import dataclasses

import pytest
from kvterrace.kvstore.placement import ADMISSIONS, AdmitAll, BlockFacts, CostBased, SecondHit
from kvterrace.proto import Retention

pytestmark = pytest.mark.unit

ONE_OFF = BlockFacts(hits=0, depth=3, block_bytes=4096, tier_fill=0.9, compute_s=0.001, load_s=0.1)


def facts(**changes) -> BlockFacts:
    return dataclasses.replace(ONE_OFF, **changes)


@pytest.mark.parametrize("name", ["all", "cost"])
def test_an_empty_tier_fills_with_blocks_never_hit(name: str):
    """A tier that wants hits before it takes anything never gives one."""
    assert ADMISSIONS[name]().admit(facts(tier_fill=0.0))


def test_the_default_takes_everything():
    assert AdmitAll().admit(ONE_OFF)


def test_second_hit_never_writes_a_one_off():
    assert not SecondHit().admit(facts(tier_fill=0.0))
    assert SecondHit().admit(facts(hits=1))


@pytest.mark.parametrize("changes", [
    {"tier_fill": 0.49},
    {"hits": 1},
    {"compute_s": 0.0},  # not known
    {"load_s": 0.0},
    {"compute_s": 0.2},
    {"retention": Retention(priority=51)},
    {"retention": Retention(pinned=True, priority=0)},
])  # fmt: skip
def test_cost_based_takes(changes: dict):
    assert CostBased().admit(facts(**changes))


@pytest.mark.parametrize(
    "changes", [{}, {"tier_fill": 0.5}, {"compute_s": 0.19}, {"retention": Retention(priority=50)}]
)
def test_cost_based_leaves(changes: dict):
    assert not CostBased().admit(facts(**changes))


@pytest.mark.parametrize("name", list(ADMISSIONS))
def test_pinned_blocks_are_always_admitted(name: str):
    assert ADMISSIONS[name]().admit(facts(retention=Retention(pinned=True)))


@pytest.mark.parametrize("wrong", [{"fill": 1.5}, {"fill": -0.1}, {"factor": 0.0}])
def test_cost_based_refuses_what_makes_no_sense(wrong: dict):
    with pytest.raises(ValueError, match="fill must be"):
        CostBased(**wrong)
