"""`kvterrace trace capture`: a running sidecar's requests as a trace that replays, and what goes wrong on the way."""

import asyncio
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import xxhash
from kvterrace.kvstore.sidecar import SidecarClient
from kvterrace.proto import BlockLayout, Namespace, kv_pb2, kv_pb2_grpc
from kvterrace.radix import pack_tokens

pytestmark = pytest.mark.service

LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=16, head_dim=8, dtype="float32")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("KVTERRACE_")}
WAIT_S = 30.0
STARTED: list[subprocess.Popen[str]] = []


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kvterrace.kvstore", *map(str, arguments)]
    environment = {**ENVIRONMENT, "PYTHONSAFEPATH": "1"}
    pipe = subprocess.PIPE
    STARTED.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment))
    return STARTED[-1]


@pytest.fixture(autouse=True)
def _none_left() -> Iterator[None]:
    """What a failed test leaves running ends with it."""
    yield
    while STARTED:
        process = STARTED.pop()
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=WAIT_S)


def lines(path: Path) -> list[dict[str, object]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in content.splitlines()]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="kvt-") as path:
        yield Path(path)


@pytest.fixture
def sidecar(folder: Path) -> Iterator[str]:
    socket = folder / "kv.sock"
    process = start("serve", "--uds", socket, "--dram", "8MiB", "--arena-dir", folder, "--log-level", "error")
    assert process.stdout is not None
    process.stdout.readline()  # announced: it takes connections
    yield f"unix:{socket}"
    process.terminate()
    process.wait(WAIT_S)


def capturing(address: str, out: Path, *limits: object) -> subprocess.Popen[str]:
    """A capture that has begun."""
    process = start("trace", "capture", "--address", address, "--out", out, *limits)
    assert process.stderr is not None
    assert "capturing from" in process.stderr.readline()
    time.sleep(0.5)  # said just before the stream opens
    return process


async def ask(address: str, prompts: list[list[int]]) -> None:
    """What an engine does: acquire, and save what was missing."""
    client = SidecarClient(address, Namespace(b"weights of a model", LAYOUT), client="test")
    await client.start()
    for ids in prompts:
        tokens = pack_tokens(np.repeat(ids, 16))
        got = await client.acquire(tokens, skip=0, deadline_s=1.0)
        missing = len(ids) - len(got.slots)
        if missing:
            given = await client.reserve(tokens, start=len(got.slots), count=missing)
            assert given.arena is not None
            sums = []
            for ref in given.slots:
                block = given.arena.block(ref.slot)[: LAYOUT.block_bytes]
                block[:] = 1
                sums.append(xxhash.xxh3_64_intdigest(block))
            assert await client.commit(given.lease, sums)
        await client.release(got.lease)
    await client.close()


def test_what_a_sidecar_was_asked_replays_with_the_same_hits(sidecar: str, folder: Path) -> None:
    prompts = [[1, 2, 3], [1, 2, 4], [5], [1, 2, 3, 6]]
    out = folder / "day.jsonl.gz"
    process = capturing(sidecar, out, "--requests", len(prompts))
    asyncio.run(ask(sidecar, prompts))
    said, _ = process.communicate(timeout=WAIT_S)
    assert (process.returncode, said) == (0, f"4 requests in {out}\n")
    rows = lines(out)
    assert [row["input_length"] for row in rows] == [48, 48, 16, 64]
    assert {row["block_tokens"] for row in rows} == {16}
    replay = start("trace", "replay", out, "--dram", "100blocks", "--json")
    report = json.loads(replay.communicate(timeout=WAIT_S)[0])
    assert report["runs"][0]["hit_blocks"]["dram"] == 5
    assert report["block_tokens"] == 16


def test_nothing_that_was_asked_can_be_read_from_a_capture(sidecar: str, folder: Path) -> None:
    """Another salt each time: the same prompt has other hashes, and another name of its namespace."""
    captures = []
    for name in ("a", "b"):
        process = capturing(sidecar, folder / name, "--requests", 1)
        asyncio.run(ask(sidecar, [[7, 8]]))
        process.communicate(timeout=WAIT_S)
        captures.append(lines(folder / name)[0])
    first, second = captures
    assert not set(first["hash_ids"]) & set(second["hash_ids"])
    assert first["namespace"] != second["namespace"]


def test_time_is_a_limit_and_so_is_the_reader(sidecar: str, folder: Path) -> None:
    process = capturing(sidecar, folder / "a", "--seconds", 2)
    asyncio.run(ask(sidecar, [[1], [2]]))
    assert process.communicate(timeout=WAIT_S)[0] == f"2 requests in {folder / 'a'}\n"
    assert process.returncode == 0
    process = capturing(sidecar, folder / "b")
    asyncio.run(ask(sidecar, [[1]]))
    time.sleep(0.5)  # on its way
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=WAIT_S)[0] == f"1 requests in {folder / 'b'}\n"
    assert process.returncode == 0
    assert len(lines(folder / "b")) == 1


def test_an_existing_file_is_left_as_it_is(sidecar: str, folder: Path) -> None:
    out = folder / "a"
    out.write_text("mine")
    process = start("trace", "capture", "--address", sidecar, "--out", out, "--requests", 1)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 2
    assert "is there already" in said
    assert out.read_text() == "mine"


def test_no_sidecar_is_one_line_and_leaves_no_file(folder: Path) -> None:
    out = folder / "a"
    process = start("trace", "capture", "--address", f"unix:{folder}/none", "--out", out)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    assert said.startswith("kvterrace trace capture: no sidecar answers")
    assert said.count("\n") == 1
    assert not out.exists()


class Flaky(kv_pb2_grpc.KVStoreServicer):
    """Three events, of which the second says that others were lost, and then a broken stream."""

    def Status(self, request, context):
        return kv_pb2.StatusReply()

    def Trace(self, request, context):
        for number in range(3):
            yield kv_pb2.TraceEvent(
                timestamp_s=number,
                input_length=20,
                hashes=[2**64 - 1 - number],
                block_tokens=16,
                lost=5 * (number == 1),
            )
        context.abort(grpc.StatusCode.UNAVAILABLE, "gone")


def test_what_was_captured_is_kept_when_the_sidecar_goes_away_and_what_was_lost_is_told(folder: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    kv_pb2_grpc.add_KVStoreServicer_to_server(Flaky(), server)
    server.add_insecure_port(f"unix:{folder}/kv.sock")
    server.start()
    try:
        out = folder / "a"
        process = start("trace", "capture", "--address", f"unix:{folder}/kv.sock", "--out", out)
        said, why = process.communicate(timeout=WAIT_S)
    finally:
        server.stop(None).wait()
    assert process.returncode == 1
    assert said == f"3 requests in {out}; 5 more came too fast and were lost\n"
    assert "went away: gone" in why
    assert [row["hash_ids"] for row in lines(out)] == [[2**64 - 1 - number] for number in range(3)]
