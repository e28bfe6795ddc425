"""The audit log: what it says of administrative calls, and that it fails no call."""

import errno
import json
import logging
import os
import stat
from pathlib import Path

import pytest
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.security.audit import AuditLog
from kvterrace.kvstore.security.identity import LOCAL
from kvterrace.kvstore.service.admin import CallRefused, clear_store, flush_store, retain_blocks
from kvterrace.kvstore.service.channel import Place
from kvterrace.proto import Retention

pytestmark = pytest.mark.unit


def lines(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


async def test_each_administrative_call_is_a_line_with_who_what_and_what_came_of_it(
    open_door, tools, identities, token, tmp_path
) -> None:
    file = tmp_path / "audit.jsonl"
    who = identities(tools.row("oli", "operator", tenant="acme"), tools.row("ann", "reader"))
    door = await open_door(identities=who, audit_log=file)
    oli = Place(door.tcp, tools.credentials(token=token("oli")))
    space = bytes(range(32))
    await retain_blocks(oli, space, b"\1\0\0\0" * 32, Retention(pinned=True), ["pinned"], timeout_s=5.0)
    await clear_store(oli, b"", timeout_s=5.0)
    await flush_store(oli, deadline_s=1.0, timeout_s=5.0)
    with pytest.raises(CallRefused):
        await clear_store(Place(door.tcp, tools.credentials(token=token("ann"))), space, timeout_s=5.0)
    with pytest.raises(CallRefused):
        await clear_store(oli, b"abc", timeout_s=5.0)
    with pytest.raises(CallRefused):
        await clear_store(door.tcp, b"", timeout_s=5.0)  # a stranger: counted, and no line to fill the disk with
    found = lines(file)
    assert [(each["identity"], each["call"], each["outcome"]) for each in found] == [
        ("oli", "Retain", "OK"),
        ("oli", "Clear", "OK"),
        ("oli", "Flush", "OK"),
        ("ann", "Clear", "PERMISSION_DENIED"),
        ("oli", "Clear", "INVALID_ARGUMENT"),
    ]
    assert found[0] | {"time": 0, "peer": ""} == {
        "time": 0,
        "identity": "oli",
        "tenant": "acme",
        "call": "Retain",
        "namespace": space.hex(),
        "tokens": 32,
        "pinned": True,
        "blocks": 0,
        "outcome": "OK",
        "peer": "",
    }
    assert found[1]["namespace"] == "all"
    assert str(found[0]["peer"]).startswith("ipv4:127.0.0.1:")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert door.security.audit.records == 5


async def test_without_a_file_they_go_to_the_log_of_the_process(open_door, caplog) -> None:
    door = await open_door()
    with caplog.at_level(logging.INFO, logger="kvterrace.audit"):
        await clear_store(door.uds, b"", timeout_s=5.0)
    found = [json.loads(each.message) for each in caplog.records if each.name == "kvterrace.audit"]
    assert [(each["identity"], each["call"]) for each in found] == [("local", "Clear")]


def test_a_file_that_was_moved_away_is_made_anew_and_one_that_is_there_is_appended_to(tmp_path) -> None:
    file = tmp_path / "audit"
    file.write_text('{"call": "earlier"}\n')
    audit = AuditLog(file)
    audit.record(LOCAL, "one", {}, "OK", "")
    file.rename(tmp_path / "audit.1")
    audit.record(LOCAL, "two", {}, "OK", "")
    assert [each["call"] for each in lines(tmp_path / "audit.1")] == ["earlier", "one"]
    assert [each["call"] for each in lines(file)] == ["two"]
    audit.close()


def test_a_full_disk_fails_no_call_is_counted_and_leaves_whole_lines(tmp_path, monkeypatch, caplog) -> None:
    file, write, room = tmp_path / "audit", os.write, [10, -1]

    def tight(descriptor: int, data: bytes) -> int:
        if not room:
            return write(descriptor, data)
        left = room.pop(0)
        if left < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:left])

    audit = AuditLog(file, clock=lambda: 1.0)
    monkeypatch.setattr(os, "write", tight)
    for call in ("torn", "lost", "kept"):
        audit.record(LOCAL, call, {}, "OK", "")
    assert (audit.records, audit.failures) == (3, 2)
    assert json.loads(file.read_text().splitlines()[-1])["call"] == "kept"
    logged = [each.message for each in caplog.records if each.name == "kvterrace.audit"]
    assert sum("cannot be written" in each for each in logged) == 1
    assert sum('"call": "lost"' in each for each in logged) == 1, "what the file did not take is in the process's log"
    audit.close()


def test_what_callers_say_cannot_forge_a_line(tmp_path) -> None:
    file = tmp_path / "audit"
    audit = AuditLog(file)
    audit.record(LOCAL, "Clear", {"label": 'x"}\n{"call": "forged"}' + "y" * 1000}, "OK", "peer\n")
    assert len(lines(file)) == 1
    assert len(file.read_bytes()) < 1000
    audit.close()


@pytest.mark.parametrize("kind", ["folder", "missing", "link", "pipe"])
def test_a_path_that_is_no_file_stops_the_start(tmp_path, kind) -> None:
    path = tmp_path / "audit"
    if kind == "folder":
        path.mkdir()
    elif kind == "missing":
        path = tmp_path / "no" / "audit"
    elif kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    else:
        os.mkfifo(path)
    with pytest.raises(ConfigError, match=f"--audit-log: {path}"):
        AuditLog(path)
