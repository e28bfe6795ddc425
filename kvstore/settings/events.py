"""Options of KV events by ZeroMQ, in vLLM's format."""

from pathlib import PurePosixPath
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from ..options import flag, is_loopback, split_host_port

MAX_TOPIC_BYTES = 256
_TIERS = ("hbm", "dram", "nvme", "remote")


class EventsSettings(BaseModel):
    """See the fields' descriptions. ZeroMQ asks nobody who they are: gRPC's Events does."""

    events_zmq: str | None = Field(
        default=None,
        description="Publish KV events as vLLM does, for routers that know it, on tcp://HOST:PORT or ipc:///PATH. "
        "Needs pip install 'kvterrace[events]'.",
    )
    events_zmq_replay: str | None = Field(
        default=None, description="Answer requests for older events on this tcp://HOST:PORT or ipc:///PATH."
    )
    events_zmq_topic: str = Field(
        default="kv-events", description="Topic of the messages; llm-d wants kv@ADDRESS@MODEL."
    )
    events_zmq_encoding: Literal["map", "array"] = Field(
        default="map", description="map: as vLLM since 0.24; array: as before, for routers that are older."
    )
    events_zmq_hashes: Literal["int", "bytes"] = Field(
        default="int", description="Block hashes: int, the low 64 bits, as vLLM by default; or bytes, whole."
    )
    events_zmq_label: str = Field(
        default="", description="Only blocks of namespaces with this label, such as a model's name. Default: all."
    )
    events_zmq_medium: list[str] = Field(
        default_factory=list[str],
        description="TIER=NAME, what routers call a tier. Default: hbm=GPU, dram=CPU, nvme=DISK. May be repeated.",
    )

    @property
    def events_zmq_media(self) -> dict[str, str]:
        """Of events_zmq_medium."""
        return dict(each.split("=", 1) for each in self.events_zmq_medium)

    @model_validator(mode="after")
    def _events_zmq_make_sense(self) -> Self:
        if len(self.events_zmq_topic.encode()) > MAX_TOPIC_BYTES:
            raise ValueError(f"--events-zmq-topic: must have {MAX_TOPIC_BYTES} bytes at most")
        for each in self.events_zmq_medium:
            tier, equals, name = each.partition("=")
            if tier not in _TIERS or not equals or not 0 < len(name) <= 64:
                raise ValueError(f"--events-zmq-medium: {each!r} is not TIER=NAME, such as dram=CPU_PINNED")
        if self.events_zmq_replay is not None and self.events_zmq is None:
            raise ValueError("--events-zmq-replay needs --events-zmq: there is nothing to replay")
        for name in ("events_zmq", "events_zmq_replay"):
            endpoint = getattr(self, name)
            if endpoint is not None:
                _check_endpoint(endpoint, flag(name), anywhere=getattr(self, "insecure_listen", False))
        return self


def _check_endpoint(endpoint: str, option: str, *, anywhere: bool) -> None:
    if endpoint.startswith("ipc://"):
        path = PurePosixPath(endpoint.removeprefix("ipc://"))
        if not path.is_absolute():
            raise ValueError(f"{option}: {endpoint!r} has no absolute path, such as ipc:///run/kvterrace-events")
        return
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not host:
        raise ValueError(f"{option}: {endpoint!r} is neither tcp://HOST:PORT nor ipc:///PATH")
    try:
        split_host_port(f"0.0.0.0:{port}" if host == "*" else f"{host}:{port}")
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if not anywhere and (host == "*" or not is_loopback(host.strip("[]"))):
        raise ValueError(
            f"{option}: {endpoint!r} can be reached from other hosts, and ZeroMQ asks nobody who they are; "
            "use tcp://127.0.0.1:PORT or ipc:///PATH, or add --insecure-listen"
        )
