"""The operators' HTTP of one sidecar: /health, /ready, /metrics, /status.json. Read-only, on the store's own loop.

Off unless an address is given.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator, Mapping

import uvicorn
from fastapi import FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from .errors import KvterraceError
from .options import split_host_port

STOP_S = 2.0


def make_app(
    registry: CollectorRegistry,
    ready: Callable[[], bool],
    status_json: Callable[[], str],
    detail: Callable[[], Mapping[str, object]],
) -> FastAPI:
    """The four routes. `ready` turns false as soon as a stop begins; `status_json` is the text of /status.json; what
    `detail` says goes into the answer of /ready."""
    app = FastAPI(title="kvterrace", docs_url=None, redoc_url=None, openapi_url=None)

    # async, though nothing waits: in a worker thread the store would be read from beside its loop.
    @app.get("/health")
    async def health() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    @app.get("/ready")
    async def readiness(response: Response) -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        if ready():
            return {"status": "ready", **detail()}
        response.status_code = 503
        return {"status": "stopping"}

    @app.get("/metrics")
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/status.json")
    async def status() -> Response:  # pyright: ignore[reportUnusedFunction]
        return Response(status_json(), media_type="application/json")

    return app


class HttpServer:
    """Serves `app` on a bound socket within the running loop; leaves the process's signals alone."""

    def __init__(self, app: FastAPI, address: str) -> None:
        self._socket = _bind(address)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it listens, with the port the system chose."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

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
