"""EngineConfig: everything the engine can be told, frozen, built once. Flags win over environment over TOML file."""

import os
import tomllib
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from .receipts import DEFAULT_RECEIPTS, MAX_RECEIPTS

ENV_PREFIX = "KVTERRACE_ENGINE_"


class EngineConfig(BaseSettings):
    """Unknown keys are errors that name themselves. Environment: KVTERRACE_ENGINE_<FIELD>."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, extra="forbid", frozen=True, protected_namespaces=())

    model: Path = Field(description="GGUF file or Hugging Face directory")
    device: str = Field("cpu", description="torch device")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field("auto", description="weights and KV")
    threads: int = Field(0, ge=0, description="torch intra-op threads; 0 leaves torch's own choice")
    block_tokens: int = Field(16, ge=1, le=256, description="tokens in a block, and in a page")
    max_model_len: int | None = Field(None, ge=2, description="prompt and output together; default: the model's")
    kv_pool_bytes: int = Field(1 << 30, ge=1, description="HBM pool size; ignored when kv_pool_pages is given")
    kv_pool_pages: int | None = Field(None, ge=1, description="HBM pool size in pages")
    max_step_tokens: int = Field(512, ge=1, description="tokens the model is fed in one step; decodes go first")
    max_running: int = Field(32, ge=1, description="sequences in one step")
    max_queue: int = Field(256, ge=1, description="requests waiting to run; more are refused")
    max_queue_wait_s: float = Field(60.0, gt=0, description="longest wait to run for the first time")
    prefix_cache: bool = Field(True, description="share full blocks between requests")
    kv_connector: Literal["none", "embedded", "sidecar"] = Field("embedded", description="where KV beyond HBM is kept")
    kv_address: str | None = Field(None, description="the sidecar; default: this user's Unix socket")
    kv_token_file: Path | None = Field(None, description="file of the token to show to the sidecar")
    kv_tls_ca: Path | None = Field(None, description="speak TLS to the sidecar: its CA (PEM), or system")
    kv_tls_cert: Path | None = Field(None, description="certificate (PEM) to show to the sidecar")
    kv_tls_key: Path | None = Field(None, description="key (PEM) of kv_tls_cert")
    kv_dram_bytes: int = Field(1 << 30, ge=1, description="embedded: DRAM tier size")
    kv_codec: Literal["none", "fp8", "int8"] = Field("none", description="lossy form of the KV in the store")
    kv_fetch_deadline_s: float = Field(
        0.25, gt=0, description="longest wait for the store's offer, plus its bytes at 100 MB/s"
    )
    kv_load_deadline_s: float = Field(1.0, gt=0, description="longest wait for a load, plus its bytes at 100 MB/s")
    kv_fetch_ahead: int = Field(8, ge=1, description="waiting requests fetched ahead of admission")
    kv_prefetch_ahead: int = Field(32, ge=0, description="waiting requests behind those, prefetched within the store")
    receipts: int = Field(DEFAULT_RECEIPTS, ge=1, le=MAX_RECEIPTS, description="last requests whose receipts are kept")
    otlp: str | None = Field(None, description="send OpenTelemetry spans to this collector, by OTLP over HTTP")
    otlp_sample: float = Field(1.0, ge=0, le=1, description="share of the requests without a trace that begin one")
    slo_ttft_s: float | None = Field(None, gt=0, description="time to first token that requests are to meet")
    slo_itl_s: float | None = Field(None, gt=0, description="mean time between tokens that requests are to meet")

    api_keys: Path | None = Field(None, description="TOML file of who may call: keys by SHA-256, roles")
    tls_cert: Path | None = Field(None, description="certificate (PEM) of the HTTP server, which then speaks TLS")
    tls_key: Path | None = Field(None, description="key (PEM) of tls_cert")
    tls_ca: Path | None = Field(None, description="CA (PEM) whose client certificates are believed")
    insecure_listen: bool = Field(False, description="listen where other hosts can reach it, whoever they are")

    @model_validator(mode="after")
    def _listens_with_a_whole_certificate(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are given together")
        if self.tls_ca is not None and self.tls_cert is None:
            raise ValueError("tls_ca needs tls_cert and tls_key: only over TLS are there client certificates")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_running > self.max_step_tokens:
            raise ValueError(
                "max_running must not exceed max_step_tokens: each running sequence takes one token a step"
            )
        if not self.prefix_cache and self.kv_connector != "none":
            raise ValueError("kv_connector needs prefix_cache: loaded blocks are shared blocks; set it to none")
        shown = [self.kv_token_file, self.kv_tls_ca, self.kv_tls_cert, self.kv_tls_key]
        if any(shown) and self.kv_connector != "sidecar":
            raise ValueError("kv_token_file, kv_tls_ca, kv_tls_cert and kv_tls_key are for kv_connector sidecar")
        if (self.kv_tls_cert is None) != (self.kv_tls_key is None):
            raise ValueError("kv_tls_cert and kv_tls_key are given together")
        if self.kv_codec != "none" and self.kv_connector == "none":
            raise ValueError("kv_codec needs a kv_connector: KV in HBM is never coded")
        return self


def load_config(toml: Path | None = None, **flags: object) -> EngineConfig:
    """Builds the one EngineConfig. `flags` are given ones only (leave unset flags out). Raises ValueError, one line a
    problem, naming each bad or unknown key."""
    unknown = [
        name
        for name in os.environ
        if name.startswith(ENV_PREFIX) and name[len(ENV_PREFIX) :].lower() not in EngineConfig.model_fields
    ]
    if unknown:
        raise ValueError(f"unknown environment variables: {', '.join(sorted(unknown))}")
    from_file: dict[str, object] = tomllib.loads(toml.read_text()) if toml is not None else {}
    # A file value must lose to the environment, but constructor arguments win over it: pass only what it does not set.
    kept = {k: v for k, v in from_file.items() if k in flags or ENV_PREFIX + k.upper() not in os.environ}
    try:
        return EngineConfig(**{**kept, **flags})  # pyright: ignore[reportArgumentType]
    except ValidationError as error:
        lines = [f"{'.'.join(str(p) for p in e['loc']) or 'engine'}: {e['msg']}" for e in error.errors()]
        raise ValueError("\n".join(lines)) from None
