"""WebSockets through the real server: TLS, client certificates, other sites, and sizes."""

import asyncio
import contextlib
import importlib.util
import ssl
import sys
from pathlib import Path

import pytest
from kvterrace.kvstore.http import MAX_WS_BYTES, HttpServer
from kvterrace.kvstore.security.audit import AuditLog
from kvterrace.kvstore.security.guard import Guard
from kvterrace.kvstore.security.http import CALLER
from kvterrace.kvstore.security.setup import Security
from kvterrace.kvstore.security.tls import Tls, TlsFiles

pytestmark = pytest.mark.unit

client = pytest.importorskip("websockets.asyncio.client")
errors = pytest.importorskip("websockets.exceptions")


def _certificates():
    path = Path(__file__).parents[1] / "certificates.py"
    spec = importlib.util.spec_from_file_location("certificates", path)
    module = sys.modules["certificates"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def says_who(scope, receive, send) -> None:
    """An app: tells whom it takes the caller for, then how long each message was."""
    assert scope["type"] == "websocket"
    await receive()
    await send({"type": "websocket.accept"})
    await send({"type": "websocket.send", "text": scope[CALLER].name})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "text": str(len(message.get("text") or ""))})


@contextlib.asynccontextmanager
async def serving(security: Security):
    server = HttpServer(says_who, "127.0.0.1:0", security)  # type: ignore[arg-type]
    await server.start()
    try:
        yield server.url.replace("http", "ws", 1) + "/_nicegui_ws/socket.io/"
    finally:
        await server.stop()


async def test_a_browsers_certificate_counts_for_its_sockets(tmp_path: Path) -> None:
    authority = _certificates().Authority(tmp_path)
    cert, key = authority.issue("server")
    own = authority.issue("ann")
    known = ssl.create_default_context(cafile=str(authority.file))
    known.load_cert_chain(*map(str, own))
    stranger = ssl.create_default_context(cafile=str(authority.file))
    security = Security(Guard(asks=True), AuditLog(), Tls(TlsFiles(cert, key, authority.file)))
    async with serving(security) as url:
        async with client.connect(url, ssl=known) as socket:
            assert "ann" in str(await socket.recv())
        with pytest.raises(errors.InvalidStatus):
            await client.connect(url, ssl=stranger)


async def test_another_sites_page_gets_no_socket_and_nobody_sends_much() -> None:
    async with serving(Security(Guard(), AuditLog())) as url:
        with pytest.raises(errors.InvalidStatus):
            await client.connect(url, origin="http://evil.example")
        async with client.connect(url, origin=url.partition("/_")[0].replace("ws", "http", 1)) as socket:
            assert await socket.recv() == "local"
            await socket.send("x" * 1000)
            assert await socket.recv() == "1000"
            await socket.send("x" * (MAX_WS_BYTES + 1))
            with pytest.raises(errors.ConnectionClosed):
                await asyncio.wait_for(socket.recv(), 10)
