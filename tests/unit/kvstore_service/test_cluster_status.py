"""What `kvterrace status` and `kvterrace drain` say of a node of a cluster."""

import io
import json

import pytest
from kvterrace.kvstore.commands.drain import outcome
from kvterrace.kvstore.status_view import status_json, status_tables
from kvterrace.proto import kv_pb2 as pb
from rich.console import Console

pytestmark = pytest.mark.unit


def reply() -> pb.StatusReply:
    members = [
        pb.MemberStatus(node="b", epoch=b"\2" * 8, grpc="h:2", wire_version=1, package_version="0.1.0", state="paused"),
        pb.MemberStatus(node="a", epoch=b"\1" * 8, grpc="h:1", wire_version=2, package_version="0.2.0", draining=True),
    ]
    cluster = pb.ClusterStatus(
        name="main", node="a", epoch=b"\1" * 8, connected=True, joined=True, draining=True, marks=1234, members=members
    )
    cluster.valkey, cluster.replica_bytes, cluster.hot_last_bytes = "redis://v:6379", 3 << 20, 5 << 20
    return pb.StatusReply(cluster=cluster, drain=pb.DrainProgress(phase="handing", handed_blocks=7, waiting_blocks=9))


def test_people_see_the_members_and_how_each_is() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    for part in status_tables(reply()):
        console.print(part)
    said = console.export_text()
    assert "cluster main at redis://v:6379: connected, 1,234 marks" in said
    assert "replicas 3.0 MiB" in said
    assert "nowhere else 5.0 MiB" in said
    a, b = (next(line for line in said.splitlines() if f" {node} " in line) for node in "ab")
    assert "this one, draining" in a
    assert "0101010101"[:8] in a
    assert "paused" in b
    assert "0.1.0 (wire 1)" in b
    assert "draining: handing, 7 blocks handed over, 9 to go" in said


def test_programs_see_all_of_it() -> None:
    said = json.loads(status_json(reply()))["cluster"]
    assert (said["node"], said["draining"], said["epoch"]) == ("a", True, "01" * 8)
    assert [each["node"] for each in said["members"]] == ["b", "a"]


def test_who_is_in_no_cluster_says_nothing_of_one() -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    for part in status_tables(pb.StatusReply()):
        console.print(part)
    assert "cluster" not in console.export_text()


def test_what_came_of_a_drain_is_said_with_what_was_left_and_why() -> None:
    said = pb.DrainProgress(handed_blocks=1200, handed_bytes=3 << 20, seconds=1.25, safe_blocks=5, left_bytes=1 << 20)
    said.to["b"], said.to["c"] = 1000, 200
    said.left["full"], said.left["deadline"] = 30, 4
    assert outcome(said) == [
        "handed over 1,200 blocks (3.0 MiB) in 1.2 s",
        "to: b 1,000, c 200",
        "on other nodes already: 5 blocks",
        "left behind: 34 blocks (1.0 MiB): deadline 4, full 30",
    ]
