"""How kvterrace talks gRPC: addresses, message limits, keepalive. The same for both ends and for every caller."""

import grpc
import grpc.aio

from ..options import split_host_port

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


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to `address` that dials on first use. Close it."""
    return grpc.aio.insecure_channel(target_of(address), options=_CLIENT_OPTIONS)
