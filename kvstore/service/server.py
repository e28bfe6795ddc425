"""The gRPC server of a sidecar: one Unix socket (0600), and TCP when asked for, in TLS when it has a certificate."""

import os
from pathlib import Path

import grpc.aio

from ..errors import KvterraceError
from ..options import split_host_port
from ..security.edge import Edge
from ..security.setup import Security
from ..security.tls import Tls
from .channel import SERVER_OPTIONS
from .servicer import Servicer
from .stub import add_servicer

MAX_CALLS = 1024  # sessions and unary calls at once
DRAIN_S = 2.0
STOP_S = 0.5


class GrpcServer:
    """Serves `servicer` on `uds`, whose path the caller owns, and on `listen`. `addresses` are what clients dial.
    security: who may call what."""

    def __init__(self, servicer: Servicer, uds: Path, listen: str | None, security: Security) -> None:
        self._servicer = servicer
        edge = Edge(security.guard, security.audit)
        self._server = grpc.aio.server(interceptors=[edge], options=SERVER_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        add_servicer(servicer, self._server)
        self.addresses = [_bind_uds(self._server, uds)]
        if listen is not None:
            self.addresses.append(_bind_tcp(self._server, listen, security.tls))

    async def start(self) -> None:
        """Begin to accept."""
        await self._server.start()

    async def stop(self) -> None:
        """Stop accepting, answer what waits within DRAIN_S, end the sessions. At most DRAIN_S + 2 * STOP_S."""
        stopping = self._server.stop(DRAIN_S + STOP_S)  # refuses new calls from here on
        await self._servicer.drain(DRAIN_S)
        await stopping


def _bind_uds(server: grpc.aio.Server, path: Path) -> str:
    address = f"unix:{path}"
    before = os.umask(0o177)  # the socket is never open to others, not even for a moment
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise KvterraceError(f"cannot listen on {address}: {error}") from None
    finally:
        os.umask(before)
    return address


def _bind_tcp(server: grpc.aio.Server, address: str, tls: Tls | None) -> str:
    host = split_host_port(address)[0]
    try:
        if tls is not None:
            port = server.add_secure_port(address, tls.grpc_credentials())
        else:
            port = server.add_insecure_port(address)
    except RuntimeError:
        raise KvterraceError(
            f"cannot listen on {address}: the port is taken, or the address is not this host's"
        ) from None
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
