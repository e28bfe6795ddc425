"""The operators' HTTP of one sidecar: /health, /ready, /metrics, /status.json, and the dashboard. On the store's own
loop.

Off unless an address is given. Who may see what is the edge's business, security/http.py.
"""

import asyncio
import contextlib
import importlib.util
import logging
import socket
from collections.abc import Callable, Generator, Mapping
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from .errors import KvterraceError
from .options import split_host_port
from .security.http import CALLER, TRUSTED, CertifiedProtocol, HttpEdge
from .security.identity import LOCAL
from .security.setup import Security

STOP_S = 2.0
MAX_CONNECTIONS = 256
MAX_WS_BYTES = 64 << 10  # of a message from a browser: a click


def make_app(
    registry: CollectorRegistry,
    state: Callable[[], str],
    status_json: Callable[[], str],
    detail: Callable[[], Mapping[str, object]],
) -> FastAPI:
    """The four routes. `state` says "ready", or what this does instead ("starting", "warming", "draining",
    "stopping"); `status_json` is the text of /status.json; what
    `detail` says goes into the answer of /ready to those who are trusted."""
    app = FastAPI(title="kvterrace", docs_url=None, redoc_url=None, openapi_url=None)

    # async, though nothing waits: in a worker thread the store would be read from beside its loop.
    @app.get("/health")
    async def health() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    @app.get("/ready")
    async def readiness(request: Request, response: Response) -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        said = state()
        response.status_code = 200 if said == "ready" else 503
        return {"status": said, **(detail() if request.scope.get(TRUSTED) else {})}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        _refuse_a_tenants(request)
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/status.json")
    async def status(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        _refuse_a_tenants(request)
        return Response(status_json(), media_type="application/json")

    return app


def _refuse_a_tenants(request: Request) -> None:
    """Counts of all tenants are not for one of them, who could tell from them what the others ask for."""
    if request.scope.get(CALLER, LOCAL).tenant:
        raise HTTPException(403, "this tells of all tenants; an identity with a tenant may not read it")


class HttpServer:
    """Serves `app` on a bound socket within the running loop; leaves the process's signals alone. security: who is let
    in, and TLS."""

    def __init__(self, app: FastAPI, address: str, security: Security) -> None:
        self._socket = _bind(address)
        config = uvicorn.Config(
            HttpEdge(app, security.guard),
            http=CertifiedProtocol,
            ws=_websockets(),
            ws_max_size=MAX_WS_BYTES,
            ws_max_queue=8,
            ws_per_message_deflate=False,  # it would be the store's loop that compresses
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            limit_concurrency=MAX_CONNECTIONS,
            proxy_headers=False,  # nobody may say from where they come
        )
        config.load()
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)  # a line for each socket, with what is in its URL
        # A certificate is asked for, and verified; who has none may still show a token, or only ask for /health.
        config.ssl = security.tls.context(optional=True) if security.tls is not None else None
        self._scheme = "http" if security.tls is None else "https"
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it listens, with the port the system chose."""
        host, port = self._socket.getsockname()[:2]
        return f"{self._scheme}://[{host}]:{port}" if ":" in host else f"{self._scheme}://{host}:{port}"

    async def start(self) -> None:
        """Begin to accept."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        await self._server.up.wait()

    async def stop(self) -> None:
        """Finish the requests in flight, within STOP_S, and close the socket."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=STOP_S)
            self._task.cancel()
        self._socket.close()


class _QuietServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The process's owner handles them."""
        yield


def _websockets() -> Any:
    """uvicorn's protocol for them, with the names in certificates; "none" without the library, which comes with the
    dashboard."""
    if importlib.util.find_spec("websockets") is None:
        return "none"
    from .security.websockets import CertifiedWebSocket  # noqa: PLC0415

    return CertifiedWebSocket


def _bind(address: str) -> socket.socket:
    host, port = split_host_port(address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as unless_bound:
            bound = unless_bound.enter_context(socket.socket(family, kind, proto))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(where)
            unless_bound.pop_all()
    except OSError as error:
        raise KvterraceError(f"cannot listen for HTTP on {address}: {error.strerror}") from None
    return bound
