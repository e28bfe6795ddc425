"""The engine's thread: takes requests and cancellations from any thread, runs steps, sleeps when there is nothing to
do. Everything below it (core, scheduler, pool, sequences) belongs to this one thread."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from .config import EngineConfig
from .request import Output, Request
from .stats import EngineStats

if TYPE_CHECKING:
    from ..connector.base import KVConnector
    from .model import LoadedModel

#: (pool tensor, on_event) -> connector. on_event may be called from any thread and wakes the engine.
ConnectorFactory = Callable[[Tensor, Callable[[], None]], "KVConnector"]


class EngineLoop:
    """Thread-safe front of the engine. Outputs are delivered by calling on_output on the engine's thread: it must be
    quick and must not raise (a raise is logged and cancels that request)."""

    def __init__(
        self, loaded: "LoadedModel", config: EngineConfig, connector_factory: ConnectorFactory | None = None
    ) -> None:
        """Allocates and touches the KV pool. connector_factory None: no store beyond HBM."""
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def close(self, *, drain_s: float = 0.0) -> None:
        """Refuses new requests, waits up to drain_s for those running, cancels the rest, ends the thread."""
        raise NotImplementedError

    @property
    def alive(self) -> bool:
        """Started, not closed, thread running."""
        raise NotImplementedError

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt submit() accepts."""
        raise NotImplementedError

    def submit(self, request: Request, on_output: Callable[[Output], None]) -> None:
        """Queues a request. Raises QueueFull, or RequestRefused for one that can never be served."""
        raise NotImplementedError

    def cancel(self, request_id: str) -> None:
        """Ends all samples of a request with finish_reason "cancelled"; unknown ids are ignored (it just ended)."""
        raise NotImplementedError

    def stats(self) -> EngineStats:
        """A copy, as of the last step."""
        raise NotImplementedError

    def clear_hbm(self) -> int:
        """Drops every cached block that nothing leases; returns how many."""
        raise NotImplementedError

    def check(self) -> None:
        """Recounts pages and leases on the engine's thread; AssertionError if any is lost or counted twice."""
        raise NotImplementedError
