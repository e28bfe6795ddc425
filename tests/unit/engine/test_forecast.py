"""What a prompt would find: HBM and store together, and where it breaks, without touching either."""

import pytest
from kvterrace.connector.base import Lookup, Miss
from kvterrace.engine.forecast import forecast

pytestmark = pytest.mark.unit


def ask(prompt=70, hbm=0, found=None, **options):
    return forecast(prompt, hbm, found, block_tokens=4, store="sidecar", unasked=Miss("disconnected"), **options)


@pytest.mark.parametrize("hbm", [0, 4, 20, 40, 60, 68])
def test_tiers_sum_to_the_prompt_whatever_overlaps(hbm):
    found = Lookup({"nvme": 24, "dram": 16}, "evicted", miss=Miss("evicted", 40, "nvme", 5.0, 9.0))
    told = ask(hbm=hbm, found=found)
    assert sum(told.tokens.values()) == 70
    assert told.tokens["hbm"] == hbm
    assert told.tokens["dram"] == max(0, 16 - hbm)
    assert told.tokens["nvme"] == max(0, 40 - max(hbm, 16))
    assert told.tokens["computed"] == 70 - max(hbm, 40)
    if hbm <= 40:
        assert told.miss == found.miss
    elif hbm < 68:
        assert told.miss == Miss("evicted", hbm)
    else:
        assert told.miss is None, "every full block is there"


def test_a_break_that_hbm_has_got_past_is_told_of_the_next_block():
    found = Lookup({}, "diverged", miss=Miss("diverged", 2, cached=b"1234"))
    assert ask(hbm=8, found=found).miss == Miss("never_seen", 8)


def test_a_store_that_did_not_say_is_told():
    told = ask(hbm=8)
    assert told.miss == Miss("disconnected", 8)
    assert (told.compute_s, told.load_s) == (0.0, 0.0)


def test_an_older_stores_bare_reason_is_used():
    assert ask(found=Lookup({"dram": 8}, "never_seen")).miss == Miss("never_seen", 8)


def test_the_remote_store_and_peers_are_told_where_a_store_names_them():
    told = ask(found=Lookup({"dram": 4, "remote": 8}, "never_seen"))
    assert (told.tokens["dram"], told.tokens["remote"], told.tokens["computed"]) == (4, 8, 58)


@pytest.mark.parametrize(("prompt", "missing"), [(3, False), (4, False), (5, True), (8, True), (9, True)])
def test_blocks_that_are_never_reused_are_no_miss(prompt, missing):
    """Of a prompt of 4 tokens the last one is always computed: its only full block cannot come from a cache."""
    assert (ask(prompt=prompt, found=Lookup({}, "never_seen")).miss is not None) is missing


def test_asking_hbm_changes_nothing(rig, prompt):
    engine, tokens = rig(), prompt(1, 33)
    engine.one(tokens)
    hits = engine.pool.index.col("hits").copy()
    assert engine.core.in_hbm(packed(tokens[:32]))[0] == 32
    known, miss = engine.core.in_hbm(packed(tokens[:10] + prompt(2, 22)))
    assert (known, miss.reason, miss.token) == (8, "diverged", 10)
    assert miss.cached.startswith(packed(tokens[10:32]))
    assert engine.core.in_hbm(packed(prompt(3, 8))) == (0, Miss("not_in_hbm", 0))
    assert engine.core.in_hbm(b"") == (0, Miss("not_in_hbm", 0))
    assert (engine.pool.index.col("hits") == hits).all()
    engine.all_free()
    assert rig(prefix_cache=False).core.in_hbm(packed(tokens)) == (0, Miss("cache_off"))


def packed(tokens):
    return b"".join(token.to_bytes(4, "little") for token in tokens)
