"""`kvterrace serve`: builds arena, store, gRPC and HTTP on one event loop, waits for a signal, and stops with grace.

Stopping takes a few seconds, and with an NVMe tier as long as writing takes, within three times STOP_FLUSH_S. It
leaves neither socket nor arena behind.
"""

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING

from .arena import Arena
from .config import ServeConfig
from .errors import KvterraceError
from .events.publishing import publishing
from .handover.drain import Drain
from .insight import Insight
from .memory import default_capacity_bytes
from .nvme_setup import nvme_plan, open_below
from .placement.policies import make_policy
from .remote.setup import open_remote
from .security.setup import Security, secured
from .service.server import GrpcServer
from .service.servicer import Servicer
from .service.socket_path import SocketPath
from .status_view import format_bytes, status_json
from .store import Store
from .tenants.setup import open_tenants, tenant_of
from .text import Texts
from .tracing import tracing

if TYPE_CHECKING:
    from .node import Node

log = logging.getLogger(__name__)

STOP_FLUSH_S = 10.0  # what a stop may take to write what waits for the NVMe tier


async def serve(config: ServeConfig, *, announce: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT. KvterraceError says why it cannot start.

    announce: called with one line for each address, once it takes connections.
    """
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    stop = _stop_on_signals()
    with contextlib.ExitStack() as owned:
        try:
            owned.enter_context(SocketPath(config.uds))
        except OSError as error:
            raise KvterraceError(f"the socket {config.uds} cannot be made: {error.strerror}") from None
        security = owned.enter_context(secured(config))
        tracer = owned.enter_context(tracing(config.otlp, "kvterrace-sidecar", instance=config.node or ""))
        arena = Arena.create(config.dram or default_capacity_bytes(config.arena_dir), directory=config.arena_dir)
        owned.callback(arena.close)
        policy = make_policy(config.policy, config.pin_share)
        tenants = open_tenants(config, arena.capacity_bytes)
        below = open_below(nvme_plan(config), announce, tenant_of(tenants)) if config.nvme else None
        texts = Texts(config.text)
        insight = Insight(receipts=config.receipts, text=texts.of)
        store = Store(arena, policy=policy, below=below, tenants=tenants, insight=insight, tracer=tracer)
        owned.callback(store.close)
        remote = open_remote(config, tenant_of(tenants))
        if remote is not None:
            store.attach_remote(remote)
            remote.tier.start()
        insight.start()
        node: list[Node] = []  # once it is one
        servicer = Servicer(store, str(arena.path), arena.boot_id, node=config.node, texts=texts)
        servicer.leaving = Drain(store.stock, store.flush, stop.set)
        async with (
            _stopping(store),
            _http(config, store, servicer, stop, node, security) as url,
            _grpc(config, servicer, security) as addresses,
            publishing(config, servicer.streams.feed, store.holdings) as (_, publishes),
            contextlib.AsyncExitStack() as later,
        ):
            if config.cluster is not None:
                from .node import in_cluster  # noqa: PLC0415  # it imports redis, which others need not wait for

                node.append(
                    await later.enter_async_context(in_cluster(config, store, servicer, addresses[-1], security))
                )
            for address in addresses:
                announce(f"serving on {address} ({_tiers(config, arena.capacity_bytes, store)}, {config.policy})")
            if url:
                announce(f"http on {url}")
            for endpoint in publishes:
                announce(f"events on {endpoint}")
            await stop.wait()
            log.info("stopping")


def _tiers(config: ServeConfig, dram_bytes: int, store: Store) -> str:
    sizes = [("DRAM", dram_bytes), *((f"NVMe {each.path}", each.capacity_bytes) for each in config.nvme)]
    remote = [f"remote {each.tier.text}"] if (each := store.remote.remote) is not None else []
    return ", ".join([*(f"{name} {format_bytes(size)}" for name, size in sizes), *remote])


@contextlib.asynccontextmanager
async def _stopping(store: Store) -> AsyncGenerator[None]:
    """Once nobody is served any more, what waits for the lower tier is written."""
    try:
        yield
    finally:
        await store.stop(STOP_FLUSH_S)


@contextlib.asynccontextmanager
async def _grpc(config: ServeConfig, servicer: Servicer, security: Security) -> AsyncGenerator[list[str]]:
    server = GrpcServer(servicer, config.uds, config.listen, security)
    try:
        await server.start()
        yield server.addresses
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def _http(
    config: ServeConfig,
    store: Store,
    servicer: Servicer,
    stop: asyncio.Event,
    node: Sequence["Node"],
    security: Security,
) -> AsyncGenerator[str]:
    """The HTTP server's URL, or "" when none is asked for."""
    if config.http is None:
        yield ""
        return
    # Here, since importing FastAPI takes half of the time that a start takes, and most sidecars have no HTTP.
    from .dashboard.offer import offer  # noqa: PLC0415
    from .events.metrics import EventsCollector  # noqa: PLC0415
    from .http import HttpServer, make_app  # noqa: PLC0415
    from .metrics import make_registry  # noqa: PLC0415
    from .node_metrics import NodeCollector  # noqa: PLC0415
    from .score_http import score_router  # noqa: PLC0415
    from .security.metrics import SecurityCollector  # noqa: PLC0415

    registry = make_registry(store.stats, store.insight)
    registry.register(NodeCollector(lambda: node[0] if node else None))
    registry.register(SecurityCollector(security))
    if store.remote.remote is not None:
        from .remote.metrics import RemoteCollector  # noqa: PLC0415

        registry.register(RemoteCollector(store.remote.remote))
    registry.register(EventsCollector(servicer.streams.feed, store.holdings.hbm, servicer.scores))
    detail = lambda: (node[0].detail() if node else {}) | store.remote.detail()  # noqa: E731
    state = lambda: _state(config, store, stop, node)  # noqa: E731
    app = make_app(registry, state, lambda: status_json(servicer.status()), detail)
    app.include_router(score_router(servicer.scores, servicer.sight))
    home = offer(config, store, servicer, state, security)
    app.mount("/", home)  # last: it has what no other route has
    server = HttpServer(app, config.http, security)
    try:
        await server.start()
        yield server.url
    finally:
        await server.stop()
        await home.close()


def _state(config: ServeConfig, store: Store, stop: asyncio.Event, node: Sequence["Node"]) -> str:
    """For /ready."""
    if stop.is_set():
        return "stopping"
    if store.stock.draining:
        return "draining"
    if config.cluster is not None and not node:
        return "starting"
    warming = node[0].warming if node else None
    return "ready" if warming is None or warming.over else "warming"


def _stop_on_signals() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT; a second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def begin() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, begin)
    return stop
