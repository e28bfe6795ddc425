"""Backend: what stands behind the HTTP routes, from "loading" to "stopped". Used from the event loop only.

    loading ──ready()──► ready ──stopping()──► stopping ──stopped()──► stopped

An engine that dies without being asked to leaves the phase at "ready"; `trouble` tells.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from .errors import no_such_model, unavailable

if TYPE_CHECKING:
    from ..loop import EngineLoop
    from ..model import LoadedModel


class Phase(Enum):
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Serving:
    """A model and its engine, both up."""

    loaded: "LoadedModel"
    engine: "EngineLoop"


class Backend:
    """model: the name that requests must give. version: of this package, for /status.json."""

    def __init__(self, model: str, version: str, *, now: Callable[[], float] = time.time) -> None:
        self.model = model
        self.phase = Phase.LOADING
        self.progress = (0.0, "starting")
        self.created_s = int(now())
        self._now = now
        self._version = version
        self._serving: Serving | None = None

    def ready(self, loaded: "LoadedModel", engine: "EngineLoop") -> None:
        """The engine is started; from here on requests are served, unless a stop was asked for meanwhile."""
        self._serving = Serving(loaded, engine)
        if self.phase is Phase.LOADING:
            self.phase = Phase.READY

    def stopping(self) -> None:
        """New requests are refused; those in flight go on."""
        self.phase = Phase.STOPPING

    def stopped(self) -> None:
        """The engine is closed: whoever still waits for it waits in vain."""
        self.phase = Phase.STOPPED

    @property
    def engine(self) -> "EngineLoop | None":
        return self._serving.engine if self._serving else None

    @property
    def dead(self) -> bool:
        """The engine will not send another output. Stopping, it still does."""
        if self.phase is Phase.READY:
            return self._serving is None or not self._serving.engine.alive
        return self.phase is Phase.STOPPED

    @property
    def trouble(self) -> str:
        """Why no request is served now; "" if they are."""
        match self.phase:
            case Phase.LOADING:
                return f"The model is loading: {self.progress[1]}, {self.progress[0]:.0%}."
            case Phase.READY:
                return "The engine has stopped." if self.dead else ""
            case _:
                return "The server is stopping."

    def serving(self, model: str | None = None) -> Serving:
        """ApiError 503 while there is none; 404 for another model than the one served."""
        trouble = self.trouble
        if trouble or self._serving is None:
            raise unavailable(trouble, self.phase.value if self.phase is not Phase.READY else "engine_stopped")
        if model is not None and model != self.model:
            raise no_such_model(model)
        return self._serving

    def readiness(self) -> tuple[bool, dict[str, Any]]:
        """For /ready. A store that is away is told, but the engine serves without it."""
        trouble = self.trouble
        detail: dict[str, Any] = {"status": "unavailable" if trouble else "ready", "phase": self.phase.value}
        if trouble:
            detail["detail"] = trouble
        connector = self.connector_status()
        if connector is not None:
            detail["connector"] = {"kind": connector["kind"], "connected": connector["connected"]}
        return not trouble, detail

    def connector_status(self) -> dict[str, Any] | None:
        """Counters and state of the KV connector; None before there is one, or without."""
        connector = self.engine.connector if self.engine else None
        return None if connector is None else asdict(connector.status())

    def status(self) -> dict[str, Any]:
        """For /status.json: everything, as numbers."""
        report: dict[str, Any] = {
            "version": self._version,
            "model": self.model,
            "phase": self.phase.value,
            "trouble": self.trouble,
            "uptime_s": round(self._now() - self.created_s, 3),
            "loading": {"fraction": self.progress[0], "step": self.progress[1]},
            "engine": None if self.engine is None else asdict(self.engine.stats()),
            "connector": self.connector_status(),
        }
        if self.engine is not None:
            report["max_prompt_tokens"] = self.engine.max_prompt_tokens
        return report
