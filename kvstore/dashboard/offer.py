"""Offer: the dashboard as an ASGI app that costs nothing before somebody looks: NiceGUI is imported then, which takes
about a second of a thread, and 35 MB."""

import asyncio
import contextlib
import importlib.util
import logging
from collections.abc import Callable, MutableMapping
from typing import Any, TypeAlias

from ..config import ServeConfig
from ..security.audit import AuditLog
from ..security.browsers import PAGE_HEADERS
from ..security.pages import page
from ..security.setup import Security
from ..service.servicer import Servicer
from ..store import Store
from .actions import Actions
from .feed import Feed
from .snapshot import Reader, Settings

log = logging.getLogger(__name__)

App: TypeAlias = Any
MOST_PAGES = 32
_LINKS = '<p><a href="/metrics">Metrics</a> · <a href="/status.json">Status as JSON</a></p>'
_MISSING = (
    "<p>The dashboard is not installed here. Install it beside this program and start it again:</p>"
    "<p><code>pip install 'kvterrace[dashboard]'</code></p>" + _LINKS
)
_OFF = "<p>This node was started with <code>--no-dashboard</code>.</p>" + _LINKS
_FULL = f"<p>{MOST_PAGES} pages are open already, which is as many as this node serves. Close one and try again.</p>"


class Offer:
    """ASGI: the dashboard at /, or why there is none. wanted: whether the operator wants one. Close it at the end."""

    def __init__(self, reader: Reader, servicer: Servicer, audit: AuditLog, *, node: str, wanted: bool) -> None:
        self._make: Callable[[], App] = lambda: self._made(servicer, node)
        self._why_not = _OFF if not wanted else "" if importlib.util.find_spec("nicegui") else _MISSING
        self._actions = Actions(servicer, audit)
        self._lock = asyncio.Lock()
        self._app: App | None = None
        self._running = contextlib.AsyncExitStack()
        self.feed = Feed(reader)

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        path = str(scope["path"])
        if scope["type"] == "http" and path == "/" and self._why_not:
            await _page(send, 501, self._why_not)
        elif self._why_not or not _is_ours(path):
            await _not_found(scope, send)
        else:
            app = await self._ready()
            if path == "/" and _open_pages() >= MOST_PAGES:
                await _page(send, 503, _FULL)
                return
            await app(scope, receive, _with_headers(send))

    async def close(self) -> None:
        """End what runs."""
        await self.feed.stop()
        await self._running.aclose()

    async def _ready(self) -> App:
        """Made on the first use."""
        async with self._lock:
            if self._app is None:
                await asyncio.to_thread(importlib.import_module, f"{__package__}.page")
                app = self._make()
                await self._running.enter_async_context(app.router.lifespan_context(app))
                self._app = app
            return self._app

    def _made(self, servicer: Servicer, node: str) -> App:
        from .page import make_dashboard  # noqa: PLC0415  # it needs NiceGUI

        return make_dashboard(self.feed, servicer, self._actions, node)


def offer(config: ServeConfig, store: Store, servicer: Servicer, state: Callable[[], str], security: Security) -> Offer:
    """As this node is configured. state: what /ready says."""
    settings = Settings(config.node, config.gpu_price, config.currency)
    reader = Reader(store, servicer, settings, state)
    return Offer(reader, servicer, security.audit, node=config.node, wanted=not config.no_dashboard)


def _is_ours(path: str) -> bool:
    return path in ("/", "/favicon.ico") or path.startswith(("/_nicegui/", "/_nicegui_ws/"))


def _open_pages() -> int:
    from nicegui import Client  # noqa: PLC0415  # it is there by now

    return len(Client.instances)


def _with_headers(send: Any) -> Any:
    async def sending(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *PAGE_HEADERS]}
        await send(message)

    return sending


async def _page(send: Any, status: int, body: str) -> None:
    kind = (b"content-type", b"text/html; charset=utf-8")
    await send({"type": "http.response.start", "status": status, "headers": [kind, *PAGE_HEADERS]})
    await send({"type": "http.response.body", "body": page("Dashboard", body)})


async def _not_found(scope: MutableMapping[str, Any], send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 404, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"detail":"Not Found"}'})
