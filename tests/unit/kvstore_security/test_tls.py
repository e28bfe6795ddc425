"""TLS of sockets: the bulk channel and HTTP ask for certificates, and take new files without a restart."""

import contextlib
import json
import ssl

import httpx
import numpy as np
import pytest
from kvterrace.kvstore.http import HttpServer, make_app
from kvterrace.kvstore.lending import Loan
from kvterrace.kvstore.peer.bulk_client import BulkClient, BulkError
from kvterrace.kvstore.peer.bulk_server import BulkServer
from kvterrace.kvstore.peer.tickets import Tickets
from kvterrace.kvstore.security.audit import AuditLog
from kvterrace.kvstore.security.guard import Guard
from kvterrace.kvstore.security.identities import watch_identities
from kvterrace.kvstore.security.metrics import SecurityCollector
from kvterrace.kvstore.security.setup import Security
from kvterrace.kvstore.security.tls import Tls, TlsFiles
from prometheus_client import CollectorRegistry

pytestmark = pytest.mark.unit

DATA = np.random.default_rng(0).integers(0, 256, (3, 300_001), dtype=np.uint8)


@pytest.fixture
def at_once(monkeypatch) -> None:
    """Files are looked at each time."""
    monkeypatch.setattr("kvterrace.kvstore.security.files.LOOK_S", 0.0)


@contextlib.asynccontextmanager
async def bulk(tls: Tls):
    """What fetches over it: call it with credentials."""
    tickets = Tickets()
    server = BulkServer("127.0.0.1", 0, tickets, tls.context())
    await server.start()

    async def fetch(shown) -> bool:
        ticket = tickets.issue(Loan(0, list(DATA), [0] * 3, [b""] * 3, lambda: None))
        client, into = BulkClient(shown.context), np.zeros_like(DATA)
        try:
            await client.receive(server.address, ticket, [row.data for row in into], deadline_s=5.0)
        finally:
            await client.close()
        return np.array_equal(into, DATA)

    try:
        yield fetch
    finally:
        await server.stop()
        tickets.close()


async def test_the_bulk_channel_asks_for_a_certificate_and_is_asked_for_its_own(
    authority, other_authority, tools
) -> None:
    cert, key = authority.issue("server")
    own = authority.issue("node")
    stranger = other_authority.issue("stranger")
    async with bulk(Tls(TlsFiles(cert, key, authority.file))) as fetch:
        assert await fetch(tools.credentials(ca=authority.file, cert=own[0], key=own[1]))
        for shown in (
            tools.credentials(ca=authority.file),
            tools.credentials(ca=authority.file, cert=stranger[0], key=stranger[1]),
            tools.credentials(ca=other_authority.file, cert=own[0], key=own[1]),
        ):
            with pytest.raises(BulkError):
                await fetch(shown)


async def test_the_bulk_channel_takes_a_new_certificate_and_a_new_ca(
    authority, other_authority, tools, at_once
) -> None:
    cert, key = authority.issue("server")
    ca = authority.folder / "clients.pem"
    ca.write_bytes(authority.file.read_bytes())
    one, other = authority.issue("one"), other_authority.issue("other")
    async with bulk(Tls(TlsFiles(cert, key, ca))) as fetch:
        old = tools.credentials(ca=authority.file, cert=one[0], key=one[1])
        assert await fetch(old)
        ca.write_bytes(other_authority.file.read_bytes())
        with pytest.raises(BulkError):
            await fetch(old)
        new_cert, new_key = other_authority.issue("server", file="new")
        new_cert.rename(cert)
        new_key.rename(key)
        assert await fetch(tools.credentials(ca=other_authority.file, cert=other[0], key=other[1]))


@contextlib.asynccontextmanager
async def http(security: Security):
    registry = CollectorRegistry()
    registry.register(SecurityCollector(security))
    app = make_app(registry, lambda: "ready", lambda: json.dumps({"a": 1}), lambda: {"cluster": "ok"})
    server = HttpServer(app, "127.0.0.1:0", security)
    await server.start()
    try:
        yield server.url
    finally:
        await server.stop()


async def statuses(url: str, headers=None, verify=True) -> list[int]:
    """Of /health, /ready, /metrics, /status.json and of a path that is none."""
    async with httpx.AsyncClient(base_url=url, verify=verify, headers=headers) as client:
        paths = ("/health", "/ready", "/metrics", "/status.json", "/nothing")
        return [(await client.get(path)).status_code for path in paths]


async def test_without_auth_http_shows_all_as_ever() -> None:
    async with http(Security(Guard(), AuditLog())) as url:
        assert await statuses(url) == [200, 200, 200, 200, 404]
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/ready")).json() == {"status": "ready", "cluster": "ok"}


async def test_with_auth_http_shows_strangers_only_that_it_is_there(tools, identities) -> None:
    known = identities(tools.row("ann", "reader"), tools.row("eve", "engine", "node"))
    security = Security(Guard(watch_identities(known), asks=True), AuditLog())
    async with http(security) as url:
        assert await statuses(url) == [200, 200, 401, 401, 401]
        assert await statuses(url, {"authorization": "Bearer secret-of-bob"}) == [200, 200, 401, 401, 401]
        assert await statuses(url, {"authorization": "Bearer secret-of-eve"}) == [200, 200, 403, 403, 403]
        ann = {"authorization": "Bearer secret-of-ann"}
        assert await statuses(url, ann) == [200, 200, 200, 200, 404]
        async with httpx.AsyncClient(base_url=url) as client:
            assert (await client.get("/ready")).json() == {"status": "ready"}
            refused = await client.get("/metrics")
            assert (refused.json(), refused.headers["www-authenticate"]) == ({"detail": "unauthorized"}, "Bearer")
            assert "cluster" in (await client.get("/ready", headers=ann)).json()
            text = (await client.get("/metrics", headers=ann)).text
    assert 'kvterrace_security_refused_calls_total{reason="role"} 3.0' in text
    assert 'kvterrace_security_refused_calls_total{reason="no_credentials"} 4.0' in text


async def test_http_knows_clients_by_their_certificates_and_probes_need_none(
    authority, other_authority, at_once
) -> None:
    cert, key = authority.issue("server")
    security = Security(Guard(asks=True), AuditLog(), Tls(TlsFiles(cert, key, authority.file)))
    async with http(security) as url:
        assert url.startswith("https://")
        probe = ssl.create_default_context(cafile=str(authority.file))
        assert await statuses(url, verify=probe) == [200, 200, 401, 401, 401]
        known = ssl.create_default_context(cafile=str(authority.file))
        known.load_cert_chain(*authority.issue("ann"))
        assert await statuses(url, verify=known) == [200, 200, 200, 200, 404]
        forged = ssl.create_default_context(cafile=str(authority.file))
        forged.load_cert_chain(*other_authority.issue("mallory"))
        with pytest.raises(httpx.TransportError):
            await statuses(url, verify=forged)
        new_cert, new_key = other_authority.issue("server", file="new")
        new_cert.rename(cert)
        new_key.rename(key)
        with pytest.raises(httpx.TransportError):
            await statuses(url, verify=known)
        assert await statuses(url, verify=ssl.create_default_context(cafile=str(other_authority.file)))
