"""make_connector: from the engine's flags to a KVConnector, started and proved, or an error that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from ..kvstore.arena import Arena
from ..kvstore.embedded import EmbeddedClient
from ..kvstore.errors import KvterraceError
from ..kvstore.options import default_uds
from ..kvstore.security.credentials import CredentialFiles, Credentials, OptionNames
from ..kvstore.sidecar import SidecarClient
from ..kvstore.store import Store
from ..kvstore.tracing import OFF, Tracer
from ..kvstore.types import StoreClient
from ..proto import KV_CODECS, BlockLayout, FieldError, Namespace
from .base import KVConnector
from .bridge import Bridge
from .limits import ConnectorLimits
from .local import LocalConnector
from .null import NullConnector

Kind = Literal["none", "embedded", "sidecar"]

_SHOWN = OptionNames("--kv-token-file", "--kv-tls-ca", "--kv-tls-cert", "--kv-tls-key")


class LayoutMismatch(KvterraceError):
    """The store's slots do not hold the engine's bytes as they should: the self-test at the start failed."""


@dataclass(frozen=True, slots=True)
class Model:
    """What makes this engine's KV bytes its own, beyond the pool's geometry; see Namespace for the fields.

    kv_codec: "none", or the lossy codec that blocks go through on their way to the store and back ("fp8", "int8"). Such
    blocks are a namespace of their own, since their dtype says so.
    """

    weights_digest: bytes
    adapter_digest: bytes = b""
    producer: str = ""
    label: str = ""
    kv_codec: str = "none"


def default_address() -> str:
    """Where `kvterrace serve` listens when nobody says."""
    return f"unix:{default_uds()}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the store is. address, shown: sidecar only; dram_bytes, tracer: embedded only. shown: files of what the
    sidecar is told of who calls, and of whom to believe."""

    address: str = field(default_factory=default_address)
    dram_bytes: int = 1 << 30
    start_timeout_s: float = 5.0
    limits: ConnectorLimits = field(default_factory=ConnectorLimits)
    shown: CredentialFiles = field(default_factory=CredentialFiles)
    tracer: Tracer = OFF


def make_connector(
    kind: Kind, pool: Tensor, on_event: Callable[[], None], *, model: Model, place: Place | None = None
) -> KVConnector:
    """The connector of this kind over `pool` [num_pages, kv_heads, layers, planes, block_tokens, head_dim].

    Waits up to start_timeout_s for the store; a sidecar that is away is no error, it is tried again in the
    background. Errors are those that waiting cannot mend: SessionRefused (it names the field), LayoutMismatch,
    ArenaError (embedded: dram_bytes do not fit), ConfigError (a file of `shown`), ValueError (pool or address).
    """
    if kind == "none":
        return NullConnector(on_event)
    place = place or Place()
    namespace = namespace_of(pool, model)
    bridge = Bridge(max_tasks=place.limits.max_calls, late_s=place.limits.late_s)
    client: StoreClient | None = None
    try:
        client = _make_client(kind, bridge, namespace, place)
        connector = LocalConnector(kind, client, bridge, pool, on_event, limits=place.limits)
    except BaseException:
        bridge.close(client.close if client is not None else _nothing, place.limits.close_s)
        raise
    try:
        if connector.start(place.start_timeout_s) == "self_test":
            raise LayoutMismatch("random blocks written to the store did not come back as they were")
    except BaseException:
        connector.close()
        raise
    return connector


def namespace_of(pool: Tensor, model: Model) -> Namespace:
    """The namespace of a pool's pages; FieldError (a ValueError) if a page cannot be a block, coded as asked."""
    kv_heads, layers, planes, block_tokens, head_dim = pool.shape[1:]
    dtype = str(pool.dtype).removeprefix("torch.")
    if model.kv_codec != "none":
        if model.kv_codec not in KV_CODECS:
            raise FieldError("kv_codec", f"must be none, {' or '.join(KV_CODECS)}, not {model.kv_codec!r}")
        dtype = f"{dtype}+{model.kv_codec}"
    layout = BlockLayout(kv_heads, layers, planes, block_tokens, head_dim, dtype)
    return Namespace(
        model.weights_digest,
        layout,
        adapter_digest=model.adapter_digest,
        producer=model.producer,
        label=model.label,
    )


class _OwnStore(EmbeddedClient):
    """The client of a store that nobody else has, and that ends with it. Made on the bridge's loop, which owns both."""

    def __init__(self, dram_bytes: int, namespace: Namespace, tracer: Tracer) -> None:
        arena = Arena.anonymous(dram_bytes)
        arena.prefault()
        self._whole = Store(arena, tracer=tracer)
        super().__init__(self._whole, namespace)

    async def close(self) -> None:
        await super().close()
        self._whole.close()


def _make_client(kind: Kind, bridge: Bridge, namespace: Namespace, place: Place) -> StoreClient:
    if kind == "sidecar":
        shown = Credentials(place.shown, _SHOWN) if place.shown != CredentialFiles() else None
        return SidecarClient(place.address, namespace, client=namespace.label or "engine", credentials=shown)

    async def embed() -> EmbeddedClient:
        return _OwnStore(place.dram_bytes, namespace, place.tracer)

    return bridge.call(embed, place.start_timeout_s)


async def _nothing() -> None:
    return
