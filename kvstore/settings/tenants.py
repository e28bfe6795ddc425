"""Options of who shares the store."""

from pathlib import Path

from pydantic import BaseModel, Field


class TenantSettings(BaseModel):
    """See the fields' descriptions."""

    tenants: Path | None = Field(
        default=None,
        description="TOML file of the tenants: secret of their salts, quotas and floors, heads that they share.",
    )
