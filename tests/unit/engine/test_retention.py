"""What a request says about its tokens reaches the blocks, new ones and those that are there already."""

import pytest
from kvterrace.connector import Retention, RetentionRange
from kvterrace.engine.request import MAX_PRIORITY, MAX_TTL_S, TokenRetention
from kvterrace.engine.retention import block_ranges
from kvterrace.proto import retention as wire

pytestmark = pytest.mark.unit

KEEP = TokenRetention(0, 8, priority=90, ttl_s=60.0)
PIN = TokenRetention(8, None, pin=True)


@pytest.mark.parametrize(("start", "end", "blocks"), [
    (0, 12, (0, 3)), (0, None, (0, 4)), (0, 13, (0, 4)), (0, 1, (0, 1)), (0, 4, (0, 1)), (0, 5, (0, 2)),
    (1, 12, (1, 3)), (4, 5, (1, 2)), (3, 4, None), (5, 8, None), (12, None, (3, 4)), (13, None, None),
    (14, None, None), (100, 200, None), (0, 10_000, (0, 4)), (4, 10_000, (1, 4)),
])  # fmt: skip
def test_a_block_is_in_a_range_when_its_first_token_is(start, end, blocks):
    ranges = block_ranges([TokenRetention(start, end)], 14, 4)
    assert [(part.start, part.end) for part in ranges] == ([blocks] if blocks else [])


def test_values_and_order_are_kept():
    ranges = block_ranges([PIN, KEEP], 16, 4)
    assert ranges == (
        RetentionRange(2, 4, Retention(pinned=True)),
        RetentionRange(0, 2, Retention(priority=90, ttl_s=60.0)),
    )


@pytest.mark.parametrize(("name", "values"), [
    ("start", {"start": -1}), ("end", {"start": 3, "end": 3}), ("priority", {"priority": 101}),
    ("priority", {"priority": -1}), ("ttl_s", {"ttl_s": -1.0}), ("ttl_s", {"ttl_s": float("nan")}),
    ("ttl_s", {"ttl_s": 1e12}),
])  # fmt: skip
def test_what_the_store_would_refuse_is_refused_here_by_name(name, values):
    with pytest.raises(ValueError, match=name):
        TokenRetention(**values)


def test_the_bounds_are_the_stores():
    assert (MAX_PRIORITY, MAX_TTL_S) == (wire.MAX_PRIORITY, wire.MAX_TTL_S)
    assert block_ranges([TokenRetention()], 4, 4)[0].retention == Retention()


def test_new_blocks_are_saved_with_it(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector, max_step_tokens=8)
    engine.one(prompt(1, 18), retention=[KEEP, PIN], max_tokens=4)
    ranges = block_ranges([KEEP, PIN], 18, 4)
    assert [save[:2] for save in connector.saves] == [(0, 2), (2, 2), (4, 1)]
    assert all(save[2] == ranges for save in connector.saves)


@pytest.mark.parametrize("count", [15, 16, 17])
def test_a_prompt_that_is_there_already_is_marked_too(rig, store, prompt, count):
    """HBM has it, so nothing is saved and nothing would ever tell the store."""
    connector, tokens = store(), prompt(1, count)
    engine = rig(connector=connector)
    engine.one(tokens, max_tokens=1)
    connector.saves.clear()
    engine.one(tokens, retention=[PIN, KEEP], max_tokens=1)
    assert connector.saves == []
    full = count // 4 * 4
    packed = b"".join(token.to_bytes(4, "little") for token in tokens[:full])
    assert connector.retained == [(packed, block_ranges([PIN, KEEP], count, 4))]


def test_the_store_is_told_once_a_request_and_after_its_saves(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector, max_step_tokens=8)
    engine.one(prompt(1, 20), retention=[KEEP], n=3, max_tokens=6)
    verbs = [entry[0] for entry in connector.log if entry[0] in {"save", "retain"}]
    assert verbs.count("retain") == 1
    assert verbs[:3] == ["save", "save", "save"]
    assert verbs[3] == "retain"


def test_only_the_tokens_in_question_are_sent(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    engine.one(prompt(1, 20), retention=[TokenRetention(4, 8, priority=1)], max_tokens=1)
    assert [len(tokens) for tokens, _ in connector.retained] == [8 * 4]


def test_a_request_without_it_tells_nothing(rig, store, prompt):
    connector = store()
    engine = rig(connector=connector)
    engine.one(prompt(1, 20))
    engine.one(prompt(1, 20), retention=[TokenRetention(19, 20)])  # no block begins there
    assert connector.retained == []
    assert all(save[2] == () for save in connector.saves)


def test_without_a_store_it_is_harmless(rig, prompt):
    assert rig().one(prompt(1, 20), retention=[KEEP]).reasons == ["length"]
