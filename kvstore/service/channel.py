"""How kvterrace talks gRPC: addresses, message limits, keepalive. The same for both ends and for every caller."""

from dataclasses import dataclass
from typing import TypeAlias, cast

import grpc
import grpc.aio

from ..options import split_host_port
from ..security.credentials import Credentials
from .bearer import BearerChannel

MAX_MESSAGE_BYTES = 16 << 20  # 4 million packed tokens
KEEPALIVE_MS = 4_000
KEEPALIVE_TIMEOUT_MS = 4_000

# Answered by gRPC's own threads, so a busy event loop is not taken for a dead host.
_KEEPALIVE: list[tuple[str, int]] = [
    ("grpc.keepalive_time_ms", KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
_LIMITS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
SERVER_OPTIONS = [
    *_KEEPALIVE,
    *_LIMITS,
    # Pings are counted against a peer when nothing else is sent for a while, whatever interval is allowed: an engine
    # without requests would lose its session after half a minute.
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # a port has one owner; a second server must fail to bind, not share it
]
_CLIENT_OPTIONS = [
    *_KEEPALIVE,
    *_LIMITS,
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel dials at once, whatever back-off an older one is in
]


def target_of(address: str) -> str:
    """gRPC's name for "unix:/run/kvterrace.sock" or "127.0.0.1:9100". ValueError says what is wrong with another."""
    if address.startswith("unix:"):
        if not address.removeprefix("unix:").startswith("/"):
            raise ValueError(f"{address!r} is not an absolute path, such as unix:/run/kvterrace.sock")
        return address
    try:
        split_host_port(address)
    except ValueError as error:
        raise ValueError(f"{error}, nor unix:/PATH") from None
    return address


@dataclass(frozen=True, slots=True)
class Place:
    """An address, and what is shown there."""

    address: str
    credentials: Credentials

    def __str__(self) -> str:
        return self.address


Address: TypeAlias = str | Place


def address_parts(to: Address) -> tuple[str, Credentials | None]:
    """Where, and what is shown there; None: nothing."""
    return (to.address, to.credentials) if isinstance(to, Place) else (to, None)


def open_channel(to: Address, credentials: Credentials | None = None) -> grpc.aio.Channel:
    """A channel that dials on first use. Close it. credentials: shown there; TLS is for HOST:PORT alone, a Unix socket
    is guarded by its mode."""
    if isinstance(to, Place):
        to, credentials = to.address, credentials or to.credentials
    target = target_of(to)
    tls = credentials.channel if credentials is not None and not target.startswith("unix:") else None
    if tls is not None:
        channel = grpc.aio.secure_channel(target, tls, options=_CLIENT_OPTIONS)
    else:
        channel = grpc.aio.insecure_channel(target, options=_CLIENT_OPTIONS)
    if credentials is not None and credentials.token:
        return cast(grpc.aio.Channel, BearerChannel(channel, credentials.token))
    return channel
