"""make_app: the routes, and the one place where errors become responses."""

import asyncio
import logging
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .admin import operators_only
from .backend import Backend
from .body import BodyBudget
from .errors import ApiError, engine_failed, no_such_model
from .generate import GenerateRoute
from .guard import Access, Door, is_trusted
from .ids import CallIds
from .inspect import add_inspection_routes
from .job import MAX_UNREAD
from .metrics import EngineCollector, HttpMetrics
from .params import parse_chat, parse_completion
from .text import add_token_routes

logger = logging.getLogger(__name__)

TOKENIZER_THREADS = 2


def make_app(backend: Backend, access: Access | None = None, *, max_unread: int = MAX_UNREAD) -> ASGIApp:
    """access: who is let in, None = everybody. max_unread: tokens that may wait for a client that does not read its
    stream, before it is cut off."""
    registry = CollectorRegistry()
    registry.register(EngineCollector(backend))
    metrics = HttpMetrics(registry)
    threads = ThreadPoolExecutor(TOKENIZER_THREADS, "kvterrace-tokenize")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        threads.shutdown(wait=False, cancel_futures=True)

    app = FastAPI(title="kvterrace engine", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    budget = BodyBudget()
    calls = (("/v1/chat/completions", parse_chat, "chatcmpl"), ("/v1/completions", parse_completion, "cmpl"))
    for path, parse, prefix in calls:
        route = GenerateRoute(path, parse, CallIds(prefix), backend, metrics, budget, threads, max_unread=max_unread)
        app.router.routes.append(Route(path, route, methods=["POST"]))
    _add_model_routes(app, backend)
    _add_operator_routes(app, backend, registry)
    add_inspection_routes(app, backend, budget)
    add_token_routes(app, backend, budget, threads)
    return CountResponses(Door(app, access or Access()), metrics)


def _add_model_routes(app: FastAPI, backend: Backend) -> None:
    def describe() -> dict[str, object]:
        serving = backend.serving()
        return {
            "id": backend.model,
            "object": "model",
            "created": backend.created_s,
            "owned_by": "kvterrace",
            "max_model_len": serving.engine.max_prompt_tokens + 1,
        }

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return {"object": "list", "data": [describe()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, object]:
        if name != backend.model:
            raise no_such_model(name)
        return describe()


def _add_operator_routes(app: FastAPI, backend: Backend, registry: CollectorRegistry) -> None:
    # async though most wait for nothing: what they read belongs to the event loop.
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready(request: Request, response: Response) -> dict[str, object]:
        good, detail = backend.readiness()
        response.status_code = 200 if good else 503
        return detail if is_trusted(request.scope) else {"status": detail["status"]}

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/status.json")
    async def status() -> dict[str, object]:
        return backend.status()

    @app.post("/admin/hbm/clear")
    async def clear_hbm(request: Request) -> dict[str, int]:
        operators_only(request)
        dropped = await asyncio.to_thread(backend.serving().engine.clear_hbm)
        return {"dropped_blocks": dropped}


class CountResponses:
    """Counts each response by route and status; outside of everything, so that it sees the answers to bugs too."""

    def __init__(self, app: ASGIApp, metrics: HttpMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Templates, not what clients write, so that the labels stay few. "route" has FastAPI's own ones only.
                route = scope.get("route") or scope.get("endpoint")
                path = getattr(route, "path", "other")
                self._metrics.responses.labels(path, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, counted if scope["type"] == "http" else send)


async def _api_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), error.status, dict(error.headers))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    """No such route, or another method."""
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    answer = ApiError(error.status_code, message, headers=dict(error.headers or {}))
    return await _api_error(request, answer)


async def _unexpected(request: Request, _: Exception) -> JSONResponse:
    """The server logs the traceback; the client gets none of it."""
    return await _api_error(request, engine_failed("Internal error."))
