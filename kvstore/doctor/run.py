"""examine_all: every look, in the order in which a reader wants them."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import ServeConfig, load_config
from ..engine_http import EngineHttp
from ..errors import ConfigError, KvterraceError
from ..memory import default_capacity_bytes
from ..options import default_uds
from ..service.channel import Address
from ..settings.nvme import parse_nvme
from .disk import look_at_disk
from .finding import Finding, Level, fail, ok, warn
from .machine import look_at_machine
from .services import look_at_engine, look_at_sidecar, look_at_valkey
from .setup import look_at_setup


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to look at. address: None = this user's socket, if there is one. nvme: PATH or PATH:SIZE each, beside those
    of the configuration. config: TOML file of `kvterrace serve`."""

    address: Address | None = None
    engines: Sequence[EngineHttp] = ()
    nvme: Sequence[str] = ()
    config: Path | None = None


def examine_all(wanted: Wanted) -> list[Finding]:
    """All findings; none raises."""
    config, found = _configuration(wanted.config)
    settings = config or load_default()
    arena_bytes = settings.dram or _default_arena(settings.arena_dir)
    found += look_at_machine(settings.arena_dir, arena_bytes)
    if config is not None:
        found += look_at_setup(config)
    disks = [(each.path, each.capacity_bytes) for each in settings.nvme]
    for text in wanted.nvme:
        path, size, fault = _disk_of(text)
        found += [fault] if fault is not None else []
        if fault is None and path not in [known for known, _ in disks]:
            disks.append((path, size))
    for path, size in disks:
        found += look_at_disk(path, size, settings.nvme_min_free)
    return found + asyncio.run(_services(wanted, settings))


async def _services(wanted: Wanted, settings: ServeConfig) -> list[Finding]:
    found: list[Finding] = []
    status = None
    address = wanted.address or f"unix:{settings.uds}"
    if wanted.address is not None or settings.uds.exists():
        looked, status = await look_at_sidecar(address)
        found += looked
    else:
        found.append(warn(f"sidecar {address}", "none runs there", "start `kvterrace serve`, or give --address"))
    if settings.cluster is not None:
        found += await look_at_valkey(settings.cluster)
    for engine in wanted.engines:
        found += look_at_engine(engine, status)  # nothing else runs here that a wait could hold up
    return found


def _configuration(path: Path | None) -> tuple[ServeConfig | None, list[Finding]]:
    """What `kvterrace serve` would run with here."""
    what = f"configuration {path}" if path is not None else "configuration"
    try:
        config = load_config({}, path)
    except ConfigError as error:
        return None, [fail(what, str(error), "mend it: a sidecar would not start")]
    said = "the file, KVTERRACE_* variables and defaults" if path is not None else "KVTERRACE_* variables and defaults"
    return config, [ok(what, said)]


def load_default() -> ServeConfig:
    """Nobody's wishes."""
    return ServeConfig.model_validate({"uds": default_uds()})


def _default_arena(directory: Path) -> int:
    try:
        return default_capacity_bytes(directory)
    except OSError:
        return 0  # a finding of its own


def _disk_of(text: str) -> tuple[Path, int, Finding | None]:
    """(path, size or 0, what is wrong)."""
    if ":" not in text:
        path = Path(text)
        return path, 0, None if path.is_absolute() else fail(f"nvme {text}", "is no absolute path", "write it whole")
    try:
        found = parse_nvme(text)
    except (ValueError, KvterraceError) as error:
        return Path(text), 0, fail(f"nvme {text}", str(error), "write PATH or PATH:SIZE")
    return found.path, found.capacity_bytes, None


def worst(found: Sequence[Finding]) -> Level:
    """Of all."""
    levels = {each.level for each in found}
    return next((level for level in (Level.FAIL, Level.WARN) if level in levels), Level.OK)
