"""Options of the store of last resort."""

from typing import Literal

from pydantic import BaseModel, Field, model_validator

from ..options import Size, flag

DEFAULT_CAPACITY_BYTES = 64 << 30


class RemoteSettings(BaseModel):
    """See the fields' descriptions."""

    remote: str | None = Field(
        default=None,
        description="Store of last resort, shared with other nodes: file:///mnt/shared/kv, "
        "s3://bucket/prefix?endpoint=URL&region=NAME, or redis://host:6379.",
    )
    remote_capacity: Size | None = Field(
        default=None,
        description="What a directory or Valkey may hold of all nodes together. Default: 64GiB. A bucket is bounded by "
        "its own lifecycle rules.",
    )
    remote_deadline: float = Field(
        default=2.0,
        gt=0.0,
        le=60.0,
        description="Seconds that the remote store may take to answer; then it is a miss.",
    )
    remote_admission: Literal["all", "second_hit"] = Field(
        default="all", description="What is written to the remote store: all or second_hit (what was read again)."
    )

    @model_validator(mode="after")
    def _remote_is_there(self) -> "RemoteSettings":
        alone = [name for name in ("capacity", "deadline", "admission") if f"remote_{name}" in self.model_fields_set]
        if self.remote is None and alone:
            raise ValueError(f"--remote: not given, and {flag(f'remote_{alone[0]}')} is for a remote store")
        if self.remote is not None and self.remote.startswith("s3:") and self.remote_capacity is not None:
            raise ValueError("--remote-capacity: a bucket is bounded by its own lifecycle rules; set one there")
        return self
