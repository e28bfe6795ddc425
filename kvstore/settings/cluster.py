"""Options of a node of a cluster."""

import socket
from typing import Self

from pydantic import BaseModel, Field, model_validator

from ..options import HostPort, Name, Size, flag


class ClusterSettings(BaseModel):
    """See the fields' descriptions."""

    cluster: str | None = Field(
        default=None,
        description="URL of the Valkey or Redis by which nodes find each other, such as redis://10.0.0.5:6379. "
        "Needs --listen.",
    )
    cluster_name: Name = Field(
        default="default", description="Nodes of one name share; others may use the same Valkey."
    )
    node: Name = Field(
        default_factory=socket.gethostname,
        validate_default=True,
        description="This node's name in the cluster. Default: the host's.",
    )
    advertise: HostPort | None = Field(
        default=None, description="HOST:PORT that other nodes dial. Default: that of --listen."
    )
    bulk_listen: HostPort | None = Field(
        default=None,
        description="HOST:PORT of the bulk channel, which carries blocks. Default: a free port beside --listen.",
    )

    warm_from_peers: Size | None = Field(
        default=None,
        description="How much of what other nodes use most to fetch before /ready, such as 2GiB. Default: nothing.",
    )
    warm_deadline: float = Field(
        default=60.0, gt=0.0, le=3600.0, description="Seconds that a warm start may take; it is ready then anyway."
    )

    @model_validator(mode="after")
    def _only_in_a_cluster(self) -> Self:
        alone = [name for name in ("advertise", "bulk_listen", "warm_from_peers") if getattr(self, name) is not None]
        if self.cluster is None and alone:
            raise ValueError(f"{flag(alone[0])} is for nodes of a cluster, and --cluster is not given")
        return self
