"""run: the engine's process, from binding its address to the last answer after SIGTERM.

It listens before the model is loaded, so that /health and /ready can be asked from the first moment.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import uvicorn
import uvloop
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from ...connector.edge import Certified, ConfigError
from ..config import EngineConfig
from ..loop import EngineLoop
from ..model import LoadedModel
from .admin import is_loopback
from .app import make_app
from .backend import Backend
from .guard import Access, make_access
from .launch import LaunchError, launch
from .progress import LoadingDisplay

logger = logging.getLogger(__name__)

LAST_SENDS_S = 3  # for the last bytes of answers, after the engine has ended
SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """grace_s: how long requests in flight may go on after SIGTERM. announce: shows one line to the user."""

    host: str
    port: int
    served_model_name: str
    grace_s: float
    announce: Callable[[str], None]


class _GaveUp(Exception):
    """A stop was asked for while the model was loading."""


class _Protocol(Certified, HttpToolsProtocol):
    """uvicorn's, which knows of client certificates."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """The process's signals are handled below."""
        yield


def run(config: EngineConfig, options: ServerOptions) -> None:
    """Serves until SIGTERM or SIGINT. LaunchError for what the user can mend."""
    with _bind(options.host, options.port) as bound:
        if not is_loopback(bound.getsockname()[0]):
            _refuse_strangers(config, options.host)
        try:
            access = make_access(config)
        except ConfigError as error:
            raise LaunchError(str(error)) from None
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, options, bound, access))


def _refuse_strangers(config: EngineConfig, host: str) -> None:
    """LaunchError unless whoever connects must prove who they are, and nobody between can listen."""
    asks = config.tls_ca is not None or config.api_keys is not None
    if asks and config.tls_cert is not None:
        return
    trouble = "keys travel there in clear" if asks else "nothing here asks who they are"
    if config.insecure_listen:
        logger.warning("%s can be reached from other hosts, and %s", host, trouble)
        return
    give = "--tls-cert and --tls-key" if asks else "--tls-cert, --tls-key and --api-keys or --tls-ca"
    raise LaunchError(
        f"--host: {host!r} can be reached from other hosts, and {trouble}; give {give}, "
        "use a loopback address such as 127.0.0.1, or add --insecure-listen"
    )


def make_server(backend: Backend, access: Access) -> uvicorn.Server:
    """Serves on the sockets it is given, and leaves signals alone."""
    config = uvicorn.Config(
        make_app(backend, access),
        http=_Protocol,
        log_config=None,
        access_log=False,
        proxy_headers=False,  # the admin route trusts the peer's address
        server_header=False,
        timeout_graceful_shutdown=LAST_SENDS_S,
    )
    config.load()
    # A certificate is asked for, and verified; who has none may still show a key, or only ask for /health.
    config.ssl = access.tls.context(optional=True) if access.tls is not None else None
    return _Server(config)


async def _serve(config: EngineConfig, options: ServerOptions, bound: socket.socket, access: Access) -> None:
    backend = Backend(options.served_model_name, version("kvterrace"))
    server = make_server(backend, access)
    stop = asyncio.Event()
    _handle_signals(stop)
    http = asyncio.create_task(server.serve(sockets=[bound]))
    engine: EngineLoop | None = None
    try:
        engine = await _load(config, backend, stop)
        if engine is not None:
            options.announce(
                f"kvterrace engine: {backend.model} is ready at {_url(bound, tls=access.tls is not None)}/v1"
            )
            await _until_stop(stop, http)
    finally:
        backend.stopping()
        if engine is not None:
            logger.info("stopping: requests in flight have %.0f s", options.grace_s)
            await asyncio.to_thread(engine.close, drain_s=options.grace_s)
        backend.stopped()
        server.should_exit = True
        await http


async def _load(config: EngineConfig, backend: Backend, stop: asyncio.Event) -> EngineLoop | None:
    """Loads beside the event loop, which answers meanwhile. None when a stop was asked for first."""
    loop = asyncio.get_running_loop()
    given_up = threading.Event()

    def report(fraction: float, what: str) -> None:  # on the loading thread
        if given_up.is_set():
            raise _GaveUp
        display.update(fraction, what)
        loop.call_soon_threadsafe(setattr, backend, "progress", (fraction, what))

    def load() -> tuple[LoadedModel, EngineLoop]:
        return launch(config, report, label=backend.model)

    with LoadingDisplay() as display:
        loading = asyncio.create_task(asyncio.to_thread(load))
        await _until_stop(stop, loading)
        if not loading.done():
            given_up.set()
        try:
            loaded, engine = await loading
        except _GaveUp:
            return None
    backend.ready(loaded, engine)
    return engine


async def _until_stop(stop: asyncio.Event, task: "asyncio.Task[Any]") -> None:
    """Waits for the stop, or for the end of the task, which is left as it is."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({stopped, task}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()


def _handle_signals(stop: asyncio.Event) -> None:
    """The first signal stops with grace, a second one at once."""
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in SIGNALS:
        loop.add_signal_handler(number, on_signal)


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as unless_bound:
            bound = unless_bound.enter_context(socket.socket(family, kind, proto))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(where)
            unless_bound.pop_all()
    except OSError as error:
        raise LaunchError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return bound


def _url(bound: socket.socket, *, tls: bool) -> str:
    scheme, (host, port) = "https" if tls else "http", bound.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
