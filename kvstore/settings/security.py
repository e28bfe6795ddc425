"""Options of who may call, and how that is found out."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, Field, model_validator

from ..options import flag, is_loopback, split_host_port


class SecuritySettings(BaseModel):
    """See the fields' descriptions. Off loopback nobody is served whose identity is not known, unless told so."""

    tls_cert: Path | None = Field(
        default=None, description="PEM file of this node's certificate: TLS on --listen, --http and --bulk-listen."
    )
    tls_key: Path | None = Field(default=None, description="PEM file of the key of --tls-cert.")
    tls_ca: Path | None = Field(
        default=None, description="PEM file of the CA whose client certificates are believed, and required."
    )
    identities: Path | None = Field(
        default=None, description="TOML file of who may call: tokens by SHA-256, certificates by name, roles, tenants."
    )
    audit_log: Path | None = Field(
        default=None, description="File that administrative calls are appended to. Default: this process's log."
    )
    node_token_file: Path | None = Field(
        default=None, description="File of the token that this node shows to others. Default: --tls-cert is shown."
    )
    node_ca: Path | None = Field(
        default=None,
        description="PEM file of the CA of other nodes, or system. Default: --tls-ca, else the system's.",
    )

    @model_validator(mode="after")
    def _pairs(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            given, missing = ("--tls-cert", "--tls-key") if self.tls_key is None else ("--tls-key", "--tls-cert")
            raise ValueError(f"{given} needs {missing}: a certificate and its key are given together")
        if self.tls_ca is not None and self.tls_cert is None:
            raise ValueError("--tls-ca needs --tls-cert and --tls-key: only a TLS listener can ask for certificates")
        for name in ("node_token_file", "node_ca"):
            if getattr(self, name) is not None and getattr(self, "cluster", None) is None:
                raise ValueError(f"{flag(name)} is for nodes of a cluster, and --cluster is not given")
        shows = self.tls_ca is not None or self.node_token_file is not None
        if getattr(self, "cluster", None) is not None and self.identities is not None and not shows:
            raise ValueError("--identities: other nodes will ask this one who it is; add --node-token-file")
        if self.node_ca is not None and self.tls_cert is None:
            raise ValueError("--node-ca needs --tls-cert and --tls-key: without them nodes speak no TLS")
        return self

    @model_validator(mode="after")
    def _off_loopback_asks_who(self) -> Self:
        if getattr(self, "insecure_listen", False):
            return self
        for name in ("listen", "http", "bulk_listen"):
            address = getattr(self, name, None)
            if address is not None and not is_loopback(split_host_port(address)[0]):
                self._refuse(name, address)
        return self

    def _refuse(self, name: str, address: str) -> None:
        """Unless whoever connects there must prove who he is, and nobody between can listen."""
        insecure = "use a loopback address such as 127.0.0.1, or add --insecure-listen"
        asks = self.tls_ca is not None or self.identities is not None
        if not asks:
            raise ValueError(
                f"{flag(name)}: {address!r} can be reached from other hosts, and nothing here asks who they are; "
                f"give --tls-cert, --tls-key and --tls-ca or --identities, {insecure}"
            )
        if self.tls_cert is None:
            raise ValueError(
                f"{flag(name)}: {address!r} can be reached from other hosts, and tokens would travel there in clear; "
                f"give --tls-cert and --tls-key, {insecure}"
            )
