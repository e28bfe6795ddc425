"""Two replicas of the real model on one sidecar, all real processes: what each of them survives, and what it costs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from kvterrace.engine.demo.client import Answer, Replica
from kvterrace.engine.demo.host import DemoOptions, Host
from kvterrace.kvstore.service.admin import fetch_receipts
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.model

MODEL = Path(
    os.environ.get("KVTERRACE_MODEL", Path(__file__).parents[2] / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf")
)
DOCUMENT = "The lighthouse keeper wrote down the weather, the ships and the birds of every single day. " * 14
BLOCK_TOKENS = 16
REATTACH_S = 30.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    assert MODEL.exists(), f"the demo model is not at {MODEL}; `make setup` fetches it"
    host = Host(DemoOptions(MODEL, (), dram="512MiB"), tmp_path_factory.mktemp("replicas"))
    try:
        host.start(lambda _: None)
        yield host
    finally:
        host.close()


def ask(replica: Replica, question: str = "Who wrote?", salt: str = "", max_tokens: int = 12) -> Answer:
    """`salt` in front makes the whole prompt one that nobody has seen."""
    return replica.ask(salt + DOCUMENT, question, max_tokens)


def status(host: Host, *flags: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "kvterrace.kvstore",
        "status",
        "--json",
        "--address",
        f"unix:{host.uds}",
        *flags,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout)


def eventually(what: Callable[[], bool], timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def attached(replica: Replica) -> bool:
    return httpx.get(f"{replica.address}/ready", timeout=5, trust_env=False).json()["connector"]["connected"]


def test_the_other_replica_answers_the_same_from_blocks_it_never_computed(host: Host) -> None:
    a, b = host.replicas["A"], host.replicas["B"]
    first, second = ask(a), ask(b)
    assert second.text == first.text
    assert first.tiers["computed"] == first.prompt_tokens
    assert second.tiers["dram"] == (second.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS
    assert second.cached_tokens == second.tiers["dram"]
    assert sum(second.tiers.values()) == second.prompt_tokens


def test_the_sidecar_heard_what_every_request_got(host: Host) -> None:
    for _ in range(2):  # the second is all in HBM: the store is not asked about it
        for replica in host.replicas.values():
            ask(replica)
    theirs = {
        each["request_id"]: each
        for replica in host.replicas.values()
        for each in httpx.get(f"{replica.address}/admin/receipts", timeout=5, trust_env=False).json()["receipts"]
    }
    assert len(theirs) >= 4

    def heard() -> bool:
        asked = fetch_receipts(f"unix:{host.uds}", pb.ReceiptsRequest(), timeout_s=10)
        ours = {each.request_id: each for each in asyncio.run(asked).receipts}
        return all(
            name in ours
            and dict(ours[name].tokens) == each["tokens"]
            and ours[name].miss.reason == each["miss_reason"]
            and abs(ours[name].ttft_s - each["ttft_s"]) < 1e-3
            for name, each in theirs.items()
        )

    eventually(heard, 5)


def test_a_killed_and_restarted_sidecar_answers_the_same_from_its_disk(host: Host) -> None:
    a = host.replicas["A"]
    expected = ask(a)
    host.kill_sidecar()
    answer = ask(a)
    assert answer.text == expected.text
    assert (answer.tiers["hbm"], answer.tiers["dram"]) == (0, 0)
    assert answer.tiers["nvme"] == (answer.prompt_tokens - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_a_killed_sidecar_fails_no_request_and_is_used_again_when_it_is_back(host: Host) -> None:
    a, b = host.replicas["A"], host.replicas["B"]
    expected = ask(a).text
    a.clear_hbm()
    b.clear_hbm()
    with ThreadPoolExecutor(6) as pool:
        # Loads of the known prompt and computations that will want to save, on both replicas.
        loads = [pool.submit(ask, replica) for replica in (a, b)]
        saves = [pool.submit(ask, replica, "Who wrote?", f"Copy {n}. ") for n, replica in enumerate((a, b, a, b))]
        time.sleep(0.15)
        os.kill(host.sidecar.pid, signal.SIGKILL)
        assert [future.result().text for future in loads] == [expected, expected]
        assert all(future.result().text for future in saves)
    a.clear_hbm()
    alone = ask(a)
    assert (alone.text, alone.tiers["dram"]) == (expected, 0)
    assert alone.miss_reason == "disconnected"

    host.sidecar.stop()
    host.sidecar.start()
    eventually(lambda: attached(a) and attached(b), REATTACH_S)
    assert ask(a, salt="Anew. ").tiers["dram"] == 0
    eventually(lambda: bool(status(host)["namespaces"][0]["blocks"]), 10)
    b.clear_hbm()
    assert ask(b, salt="Anew. ").tiers["dram"] > 0


def test_a_killed_replica_leaves_no_lease_and_no_slot_behind(host: Host) -> None:
    a = host.replicas["A"]
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, a, "Who wrote?", f"Kill {n}. ") for n in range(4)]
        time.sleep(1.0)
        os.kill(host.engines["A"].pid, signal.SIGKILL)
        for future in asked:
            assert isinstance(future.exception(), httpx.TransportError)

    def freed() -> bool:
        tiers = status(host, "--check")["tiers"]
        return all(int(tier["leased_bytes"]) == int(tier["reserved_bytes"]) == 0 for tier in tiers)

    eventually(freed, 5)
    assert sum(int(space["sessions"]) for space in status(host)["namespaces"]) == 1
    host.engines["A"].stop()
    host.engines["A"].start()
    host.wait("A")
    assert ask(a).text


def test_many_requests_at_once_on_both_replicas_all_end_with_the_same_text(host: Host) -> None:
    expected = ask(host.replicas["B"]).text
    with ThreadPoolExecutor(16) as pool:
        replicas = list(host.replicas.values())
        answers = list(pool.map(lambda n: ask(replicas[n % 2]), range(32)))
    assert {answer.text for answer in answers} == {expected}
    status(host, "--check")
