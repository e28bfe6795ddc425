"""What a node says of itself, and what is not believed of others."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvterrace.kvstore.cluster import Cluster, Member, new_epoch
from kvterrace.kvstore.cluster.membership import parse_member

pytestmark = pytest.mark.unit

MEMBER = Member("n-1.a", 1, "10.0.0.1:9100", "10.0.0.1:9101", 2, "0.1.0", draining=True)
GOOD = json.loads(MEMBER.to_json())


def test_what_is_written_is_read_back():
    assert parse_member(MEMBER.to_json().encode()) == MEMBER
    assert GOOD["epoch"] == "0000000000000001"
    assert parse_member(json.dumps(GOOD | {"later": [1]}).encode()) == MEMBER, "a later version may say more"
    assert parse_member(b'{"node":"n","epoch":"00000000000000ff"}') == Member("n", 255, "")


@pytest.mark.parametrize(
    "change",
    [
        {"node": ""},
        {"node": "a b"},
        {"node": "a{b}"},
        {"node": "n" * 129},
        {"node": 1},
        {"epoch": 1},
        {"epoch": "1"},
        {"epoch": "-000000000000001"},
        {"epoch": "0" * 17},
        {"grpc": None},
        {"grpc": "h" * 257},
        {"bulk": "a\nb"},
        {"wire_version": "1"},
        {"wire_version": -1},
        {"wire_version": True},
        {"draining": 1},
        {"later": "x" * 2048},
    ],
)
def test_nonsense_is_nobody(change):
    assert parse_member(json.dumps(GOOD | change).encode()) is None


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), st.none(), st.integers(), st.text()))
def test_whatever_is_there_is_a_member_or_nobody(data):
    found = parse_member(data)
    assert found is None or isinstance(found, Member)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_no_type_of_a_field_surprises(value):
    for name in GOOD:
        found = parse_member(json.dumps(GOOD | {name: value}).encode())
        assert found is None or isinstance(found, Member)


def test_epochs_are_new_each_time():
    assert len({new_epoch() for _ in range(100)}) == 100


@pytest.mark.parametrize(("node", "name"), [("a{b}", "c"), ("", "c"), ("a", "c}"), ("a", "")])
def test_names_that_would_break_keys_are_refused(node, name):
    with pytest.raises(ValueError, match="cannot be the name"):
        Cluster("redis://h", name, Member(node, 1, ""), lambda member: None)


async def test_without_valkey_a_cluster_answers_nobody_at_once():
    cluster = Cluster("redis://127.0.0.1:1", "c", MEMBER, lambda member: None, timeout_s=0.2)
    await cluster.start()
    assert not cluster.available
    assert await cluster.find(b"f" * 32, [b"k" * 32], 0, deadline_s=1.0) == []
    assert cluster.members() == []
    status = cluster.status()
    assert (status.connected, status.joined) == (False, False)
    assert "cannot be reached" in status.last_error
    await cluster.stop()
