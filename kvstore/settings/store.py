"""Options of the store itself, and of where it listens."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from ..arena import DEFAULT_DIRECTORY
from ..options import HostPort, PolicyName, Size, UdsPath, default_uds
from ..placement.policies import DEFAULT_PIN_SHARE, DEFAULT_POLICY, POLICY_NAMES


class StoreSettings(BaseModel):
    """See the fields' descriptions."""

    dram: Size | None = Field(default=None, description="Size of the DRAM tier, such as 4GiB. Default: what fits here.")
    policy: PolicyName = Field(
        default=DEFAULT_POLICY, description=f"Which blocks leave first: {', '.join(POLICY_NAMES)}."
    )
    pin_share: float = Field(
        default=DEFAULT_PIN_SHARE,
        ge=0.0,
        le=1.0,
        description="Share of a tier's blocks that pins may keep; beyond it a pin is none.",
    )
    arena_dir: Path = Field(default=DEFAULT_DIRECTORY, description="Directory of the shared-memory file.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="What to log: debug, info, warning or error."
    )


class ListenSettings(BaseModel):
    """See the fields' descriptions; who may be listened to off loopback is a rule of SecuritySettings."""

    insecure_listen: bool = Field(default=False, description="Allow addresses that other hosts can reach.")
    uds: UdsPath = Field(
        default_factory=default_uds, validate_default=True, description="Path of the Unix socket. Default: this user's."
    )
    listen: HostPort | None = Field(default=None, description="Also serve gRPC on this HOST:PORT.")
    http: HostPort | None = Field(
        default=None,
        description="Serve the dashboard, /health, /ready, /metrics and /status.json on this HOST:PORT. Default: off.",
    )
    no_dashboard: bool = Field(default=False, description="Leave the dashboard out of what --http serves.")
