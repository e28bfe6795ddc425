"""The `kvterrace serve` process: what it leaves behind, whom it lets in, and what its HTTP and command line say."""

import asyncio
import dataclasses
import json
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from kvterrace.kvstore.service.admin import CallRefused, clear_store
from kvterrace.kvstore.sidecar import SidecarClient

pytestmark = pytest.mark.service

Connect = Callable[..., Awaitable[SidecarClient]]


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def kvterrace(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "kvterrace.kvstore", *arguments])


async def test_sigterm_answers_what_waits_and_leaves_nothing_behind(own, connect: Connect, tools) -> None:
    client = await connect(own.start().address)
    await tools.save(client, tools.tokens(4))
    assert len(list(own.arenas.iterdir())) == 1
    began = time.monotonic()
    own.signal(signal.SIGTERM)
    code = await asyncio.to_thread(own.wait)
    assert code == 0, own.output()
    assert time.monotonic() - began < 4.0
    assert list(own.arenas.iterdir()) == []
    assert not any(path.name.startswith("kv.sock") for path in own.folder.iterdir())
    assert (await client.acquire(tools.tokens(4), skip=0, deadline_s=0.5)).reason == "disconnected"


def test_what_a_killed_server_left_is_cleaned_by_the_next(own) -> None:
    own.start().kill()
    left = set(own.arenas.iterdir())
    assert own.uds.exists()
    assert len(left) == 1
    own.start()
    assert len(set(own.arenas.iterdir()) - left) == 1
    assert not set(own.arenas.iterdir()) & left


def test_the_socket_is_for_this_user_only(served) -> None:
    assert stat.S_IMODE(served.uds.stat().st_mode) == 0o600


def test_a_second_server_on_the_same_socket_is_refused_and_the_first_goes_on(served) -> None:
    second = run(served.command())
    assert second.returncode == 2
    assert (
        second.stderr
        == f"kvterrace serve: another kvterrace serve owns {served.uds}; stop it or choose another --uds\n"
    )
    assert kvterrace("status", "--address", served.address).returncode == 0


def test_another_programs_socket_or_file_is_left_alone(own) -> None:
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(own.uds))
        other.listen()
        refused = run(own.command())
        assert refused.returncode == 2
        assert "another program answers on" in refused.stderr
    own.uds.unlink()
    own.uds.write_text("precious")
    refused = run(own.command())
    assert "is not a socket" in refused.stderr
    assert own.uds.read_text() == "precious"


def test_a_directory_that_others_may_write_to_is_refused(own) -> None:
    own.folder.chmod(0o777)
    refused = run(own.command())
    assert refused.returncode == 2
    assert f"other users may write to {own.folder}" in refused.stderr
    own.folder.chmod(0o1777)  # as /tmp: only a file's owner may replace it
    own.start()
    own.close()


@pytest.mark.parametrize("flag", ["--listen", "--http"])
def test_a_taken_port_is_one_clear_line(own, flag: str) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        refused = run(own.command(flag, address))
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1].startswith("kvterrace serve: cannot listen")
    assert address in refused.stderr
    assert "Traceback" not in refused.stderr
    assert list(own.arenas.iterdir()) == []


def test_more_memory_than_there_is_is_one_clear_line(own) -> None:
    refused = run(own.command("--dram", "900TiB"))
    assert refused.returncode == 2
    assert "the arena needs" in refused.stderr
    assert "Traceback" not in refused.stderr


async def test_a_fast_restart_is_told_from_the_start_before(own) -> None:
    first = (await own.start().status()).boot_id
    own.kill()
    again = (await own.start().status()).boot_id
    assert len(first) == len(again) == 16
    assert first != again


async def test_http_tells_health_readiness_and_the_same_status_as_grpc(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(3))
    committed = (await served.status()).counters.committed_blocks
    async with httpx.AsyncClient(base_url=served.announced("http on"), trust_env=False) as http:
        assert (await http.get("/health")).json() == {"status": "ok"}
        assert (await http.get("/ready")).status_code == 200
        status = (await http.get("/status.json")).json()
        metrics = (await http.get("/metrics")).text
    reply = await served.status()
    assert status["boot_id"] == reply.boot_id.hex()
    assert status["namespaces"][0]["blocks"] == 3
    assert status["namespaces"][0]["fingerprint"] == client.namespace.fingerprint().hex()
    assert f"kvterrace_store_committed_blocks_total {committed:.1f}" in metrics


async def test_status_shows_tables_and_json_and_clear_empties(served, connect: Connect, tools) -> None:
    client = await connect(served.address)
    await tools.save(client, tools.tokens(3))
    await client.release((await client.acquire(tools.tokens(4), skip=0, deadline_s=0.5)).lease)
    shown = await asyncio.to_thread(kvterrace, "status", "--address", served.address)
    assert shown.returncode == 0, shown.stderr
    for word in ("dram", "12.0 KiB", "8.0 MiB", "tiny", "48", "never_seen"):
        assert word in shown.stdout
    parsed = json.loads((await asyncio.to_thread(kvterrace, "status", "--address", served.address, "--json")).stdout)
    assert (parsed["namespaces"][0]["hit_tokens"], parsed["namespaces"][0]["miss_tokens"]) == (48, 16)
    assert parsed["sessions"][0]["client"] == "test"
    checked = await asyncio.to_thread(kvterrace, "status", "--address", served.address, "--check")
    assert checked.returncode == 0
    cleared = await asyncio.to_thread(kvterrace, "clear", "--address", served.address)
    assert cleared.stdout.startswith("dropped 3 blocks (")
    assert (await served.status()).tiers[0].used_bytes == 0


async def test_clear_of_one_namespace_leaves_the_others_and_names_a_bad_fingerprint(
    served, connect: Connect, namespace, tools
) -> None:
    mine = await connect(served.address)
    other = await connect(served.address, dataclasses.replace(namespace, weights_digest=b"v" * 32))
    await tools.save(mine, tools.tokens(2))
    await tools.save(other, tools.tokens(3))
    assert await clear_store(served.address, mine.namespace.fingerprint(), timeout_s=2.0) == 2
    assert len((await other.acquire(tools.tokens(3), skip=0, deadline_s=0.5)).slots) == 3
    assert (await mine.acquire(tools.tokens(2), skip=0, deadline_s=0.5)).reason == "cleared"
    with pytest.raises(CallRefused, match="fingerprint: must have 32 bytes or none, not 3"):
        await clear_store(served.address, b"abc", timeout_s=2.0)


def test_status_without_a_sidecar_is_one_line_and_code_1(folder: Path) -> None:
    address = f"unix:{folder}/none.sock"
    failed = kvterrace("status", "--address", address)
    assert failed.returncode == 1
    expected = f"kvterrace status: no sidecar answers at {address}; is `kvterrace serve` running there?\n"
    assert (failed.stdout, failed.stderr) == ("", expected)


def test_status_of_a_hung_sidecar_is_one_line_and_code_1(own) -> None:
    own.start().signal(signal.SIGSTOP)
    failed = kvterrace("status", "--address", own.address)
    assert failed.returncode == 1
    assert "has not answered within" in failed.stderr or "no sidecar answers" in failed.stderr
