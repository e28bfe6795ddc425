"""The sidecar's one frozen configuration. Flags win over the environment, the environment over the TOML file.

A key that does not exist stops the start and names itself with the nearest one that does; so does a bad value, with
the place it came from. Built once, by the command line. The options themselves are in settings/.
"""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from .errors import ConfigError
from .options import flag
from .settings.cluster import ClusterSettings
from .settings.events import EventsSettings
from .settings.insight import InsightSettings
from .settings.nvme import NvmeSettings
from .settings.remote import RemoteSettings
from .settings.security import SecuritySettings
from .settings.store import ListenSettings, StoreSettings
from .settings.tenants import TenantSettings
from .settings.tracing import TracingSettings

ENV_PREFIX = "KVTERRACE_"
# Variables of other kvterrace programs: theirs to check, not ours to refuse.
# KVTERRACE_KEYRING: keys themselves, which are in no configuration that could be shown.
FOREIGN_ENV = ("KVTERRACE_KEYRING", "KVTERRACE_MODEL", "KVTERRACE_ENGINE_", "KVTERRACE_CLIENT_", "KVTERRACE_FUZZ_")


class ServeConfig(  # pyright: ignore[reportIncompatibleVariableOverride]  # of model_config: it says so itself
    ClusterSettings,
    EventsSettings,
    InsightSettings,
    NvmeSettings,
    RemoteSettings,
    SecuritySettings,
    StoreSettings,
    TenantSettings,
    TracingSettings,
    ListenSettings,
    BaseSettings,
):
    """What `kvterrace serve` runs with. Field names are the TOML keys; KVTERRACE_<NAME> the environment's; each is a
    flag, too. A rule about several options is a model validator whose message begins with a flag."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    @model_validator(mode="after")
    def _cluster_listens(self) -> "ServeConfig":
        if self.cluster is not None and self.listen is None:
            raise ValueError("--cluster: a node of a cluster serves others: add --listen HOST:PORT")
        return self

    @model_validator(mode="after")
    def _keys_have_a_use(self) -> "ServeConfig":
        if self.nvme_keys is not None and not self.nvme and self.remote is None:
            raise ValueError("--nvme-keys: nothing is written that could be encrypted: add --nvme or --remote")
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what `load_config` hands over: it reads the sources itself, so that an error can name its place."""
        return (init_settings,)


def load_config(flags: Mapping[str, object], config_path: Path | None = None) -> ServeConfig:
    """Merge flags over KVTERRACE_* variables over the TOML file. ConfigError names the key, the value and its place.

    A flag of None was not given.
    """
    known = list(ServeConfig.model_fields)
    given = {name: value for name, value in flags.items() if value is not None}
    from_file = _read_toml(config_path) if config_path is not None else {}
    _refuse_unknown(from_file, known, f"key in {config_path}", str)
    variables = [name for name in os.environ if name.upper().startswith(ENV_PREFIX)]
    ours = {name.upper().removeprefix(ENV_PREFIX).lower() for name in variables if not _is_foreign(name.upper())}
    _refuse_unknown(ours, known, "environment variable", _variable)
    from_env = EnvSettingsSource(ServeConfig)()
    try:
        return ServeConfig.model_validate({**from_file, **from_env, **given})
    except ValidationError as error:
        first = error.errors()[0]
        if not first["loc"]:  # a rule about several of them
            raise ConfigError(first["msg"].removeprefix("Value error, ")) from None
        name = str(first["loc"][0])
        place = flag(name) if name in given else _variable(name) if name in from_env else f"{name} in {config_path}"
        raise ConfigError(f"{place}: {_reason(first['msg'], first['input'])}") from None


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return TomlConfigSettingsSource(ServeConfig, toml_file=path)() if path.is_file() else _missing(path)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def _missing(path: Path) -> dict[str, Any]:
    raise ConfigError(f"there is no file {path}")


def _is_foreign(name: str) -> bool:
    return any(name == other or (other.endswith("_") and name.startswith(other)) for other in FOREIGN_ENV)


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _refuse_unknown(names: Iterable[str], known: list[str], what: str, spell: Callable[[str], str]) -> None:
    for name in sorted(set(names) - set(known)):
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
        raise ConfigError(f"unknown {what}: {spell(name)} (did you mean {spell(near[0])}?)")


def _reason(message: str, value: object) -> str:
    """pydantic's words without its own prefix, and with the value when they leave it out."""
    text = message.removeprefix("Value error, ")
    return (
        text if repr(value) in text or isinstance(value, list | tuple) else f"{value!r}: {text[:1].lower()}{text[1:]}"
    )
