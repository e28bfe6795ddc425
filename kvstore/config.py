"""The sidecar's one frozen configuration. Flags win over the environment, the environment over the TOML file.

A key that does not exist stops the start and names itself with the nearest one that does; so does a bad value, with
the place it came from. Built once, by the command line.
"""

import difflib
import ipaddress
import os
import re
import socket
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from .arena import DEFAULT_DIRECTORY
from .errors import ConfigError
from .placement.policies import DEFAULT_PIN_SHARE, DEFAULT_POLICY, POLICY_NAMES

ENV_PREFIX = "KVTERRACE_"
# Variables of other kvterrace programs: theirs to check, not ours to refuse.
FOREIGN_ENV = ("KVTERRACE_MODEL", "KVTERRACE_ENGINE_")
MAX_UDS_PATH_BYTES = 107  # sun_path of struct sockaddr_un, less its final zero

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40} | {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


class NvmeOption(NamedTuple):
    """One path of the NVMe tier and the cap on what it may hold there."""

    path: Path
    capacity_bytes: int


def parse_size(value: object) -> int:
    """Bytes of "4GiB", "512 MiB", "1.5GB" or a plain number of bytes. ValueError says what is wrong."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        found = _SIZE.fullmatch(str(value))
        if found is None:
            raise ValueError(f"{value!r} is not a size; write a number and a unit, such as 4GiB")
        unit = _UNITS.get(found[2].upper())
        if unit is None:
            raise ValueError(
                f"{value!r} has the unknown unit {found[2]!r}; known are KiB, MiB, GiB, TiB, KB, MB, GB, TB"
            )
        size = int(float(found[1]) * unit)
    if size <= 0:
        raise ValueError(f"{value!r} must be above 0")
    return size


def split_host_port(address: str) -> tuple[str, int]:
    """("127.0.0.1", 9100) of "127.0.0.1:9100"; brackets around an IPv6 address. Port 0 lets the system choose."""
    host, colon, port = address.rpartition(":")
    if not colon or not host:
        raise ValueError(f"{address!r} is not HOST:PORT, such as 127.0.0.1:9100")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r}: {port!r} is not a port (0 to 65535)")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{address!r}: write an IPv6 address in brackets, such as [::1]:{port}")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """True for localhost, 127.0.0.0/8 and ::1; another name or address may lead off this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_host_port(address: str) -> str:
    split_host_port(address)
    return address


def _check_uds(path: Path) -> Path:
    if len(os.fsencode(path)) > MAX_UDS_PATH_BYTES:
        raise ValueError(f"{str(path)!r} is longer than the {MAX_UDS_PATH_BYTES} bytes a socket path may have")
    return path.absolute()


def default_uds() -> Path:
    """Where a sidecar listens, and its clients look, when nobody says: a directory only this user can write."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "kvterrace.sock"
    if os.geteuid() == 0:
        return Path("/run/kvterrace.sock")
    return Path(tempfile.gettempdir()) / f"kvterrace-{os.geteuid()}" / "kvterrace.sock"


def parse_nvme(value: object) -> NvmeOption:
    """("/mnt/nvme0", bytes) of "/mnt/nvme0:200GiB"."""
    path, colon, size = str(value).rpartition(":")
    if not colon or not path.startswith("/"):
        raise ValueError(f"{value!r} is not PATH:SIZE with an absolute path, such as /mnt/nvme0/kv:200GiB")
    return NvmeOption(Path(path), parse_size(size))


def _parse_nvmes(value: object) -> object:
    """A list of them, or in the environment one text with commas."""
    if isinstance(value, str):
        value = [each for each in value.split(",") if each.strip()]
    if not isinstance(value, list | tuple):
        return value
    found = [each if isinstance(each, NvmeOption) else parse_nvme(each) for each in cast("Sequence[object]", value)]
    paths = [each.path for each in found]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is given twice")
    return tuple(found)


Size = Annotated[int, BeforeValidator(parse_size)]
HostPort = Annotated[str, AfterValidator(_check_host_port)]
UdsPath = Annotated[Path, AfterValidator(_check_uds)]


_POLICY_NAMES = ", ".join(POLICY_NAMES)


def _check_policy(name: str) -> str:
    if name not in POLICY_NAMES:
        raise ValueError(f"{name!r} is no policy; there are {_POLICY_NAMES}")
    return name


NAME = re.compile(r"[A-Za-z0-9_.:\-]{1,128}")
"""What nodes and clusters may be called."""


def check_name(name: str, what: str = "node or cluster") -> str:
    """ValueError when it cannot be the name of a node or a cluster."""
    if NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} cannot be the name of a {what}: 1 to 128 of A-Z a-z 0-9 . _ : -")
    return name


Name = Annotated[str, AfterValidator(check_name)]
PolicyName = Annotated[str, AfterValidator(_check_policy)]


class ServeConfig(BaseSettings):
    """What `kvterrace serve` runs with. Field names are the TOML keys; KVTERRACE_<NAME> the environment's."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    dram: Size | None = Field(default=None, description="Size of the DRAM tier, such as 4GiB. Default: what fits here.")
    uds: UdsPath = Field(
        default_factory=default_uds, validate_default=True, description="Path of the Unix socket. Default: this user's."
    )
    insecure_listen: bool = Field(default=False, description="Allow addresses that other hosts can reach.")
    listen: HostPort | None = Field(default=None, description="Also serve gRPC on this HOST:PORT.")
    http: HostPort | None = Field(
        default=None, description="Serve /health, /ready, /metrics and /status.json on this HOST:PORT. Default: off."
    )
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
    policy: PolicyName = Field(default=DEFAULT_POLICY, description=f"Which blocks leave first: {_POLICY_NAMES}.")
    pin_share: float = Field(
        default=DEFAULT_PIN_SHARE,
        ge=0.0,
        le=1.0,
        description="Share of a tier's blocks that pins may keep; beyond it a pin is none.",
    )
    nvme: Annotated[tuple[NvmeOption, ...], NoDecode, BeforeValidator(_parse_nvmes)] = Field(
        default=(), description="PATH:SIZE of the NVMe tier, such as /mnt/nvme0/kv:200GiB; may be given several times."
    )
    nvme_min_free: Size = Field(default=1 << 30, description="What the NVMe tier leaves free on each disk.")
    nvme_daily_writes: Size | None = Field(
        default=None, description="What may be written to each NVMe path in a day, such as 500GiB. Default: no limit."
    )
    nvme_admission: Literal["all", "second_hit", "cost"] = Field(
        default="all", description="What is written to NVMe: all, second_hit (what was read again) or cost."
    )
    nvme_mode: Literal["inclusive", "exclusive"] = Field(
        default="inclusive",
        description="inclusive: write at once, survives a crash; exclusive: write what is about to leave DRAM.",
    )
    nvme_codec: Literal["none", "lossless"] = Field(
        default="none", description="none, or lossless: compress while that is faster than the disk."
    )
    arena_dir: Path = Field(default=DEFAULT_DIRECTORY, description="Directory of the shared-memory file.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="What to log: debug, info, warning or error."
    )

    @field_validator("listen", "http", "bulk_listen")
    @classmethod
    def _only_loopback(cls, address: str | None, info: ValidationInfo) -> str | None:
        # insecure_listen is declared above the addresses, so that it is known here.
        if (
            address is not None
            and not info.data.get("insecure_listen")
            and not is_loopback(split_host_port(address)[0])
        ):
            raise ValueError(
                f"{address!r} can be reached from other hosts, and nothing here asks who they are; "
                "use a loopback address such as 127.0.0.1, or add --insecure-listen"
            )
        return address

    @model_validator(mode="after")
    def _cluster_listens(self) -> "ServeConfig":
        if self.cluster is not None and self.listen is None:
            raise ValueError("a node of a cluster serves others: add --listen HOST:PORT")
        alone = [name for name in ("advertise", "bulk_listen") if getattr(self, name) is not None]
        if self.cluster is None and alone:
            raise ValueError(f"not given, and {_flag(alone[0])} is for nodes of a cluster")
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
            raise ConfigError(f"--cluster: {first['msg'].removeprefix('Value error, ')}") from None
        name = str(first["loc"][0])
        place = _flag(name) if name in given else _variable(name) if name in from_env else f"{name} in {config_path}"
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


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


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
