"""The operators' HTTP of one sidecar: /health, /ready, /metrics, /status.json. Read-only, on the store's own loop.

Off unless an address is given. Who may see what is the edge's business, security/http.py.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator, Mapping

import uvicorn
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from .errors import KvterraceError
from .options import split_host_port
from .security.http import TRUSTED, CertifiedProtocol, HttpEdge
from .security.setup import Security

STOP_S = 2.0
MAX_CONNECTIONS = 256


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
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/status.json")
    async def status() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(status_json(), media_type="application/json")

    return app


class HttpServer:
    """Serves `app` on a bound socket within the running loop; leaves the process's signals alone. security: who is let
    in, and TLS."""

    def __init__(self, app: FastAPI, address: str, security: Security) -> None:
        self._socket = _bind(address)
        config = uvicorn.Config(
            HttpEdge(app, security.guard),
            http=CertifiedProtocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=1,
            limit_concurrency=MAX_CONNECTIONS,
            proxy_headers=False,  # nobody may say from where they come
        )
        config.load()
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


def _bind(address: str) -> socket.socket:
    host, port = split_host_port(address)
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, proto)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError as error:
        raise KvterraceError(f"cannot listen for HTTP on {address}: {error.strerror}") from None
    return bound
