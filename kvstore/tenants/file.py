"""The tenants file of `kvterrace serve --tenants`: TOML, read once at the start. A wrong key or value names itself.

secret_file = "tenants.secret"          # 32 bytes or more, mode 0600 or 0640; beside this file, or absolute

[[tenant]]
name = "search"
dram_quota = "8GiB"                     # all four may be left out
dram_floor = "1GiB"
nvme_quota = "100GiB"
nvme_floor = "10GiB"

[[shared_head]]
tokens = [1, 9906, 2028]                # or file = "head.tokens", whole numbers and anything between them
written_by = ["search"]                 # whose engines' blocks of it everybody reads; "*" = all tenants'
"""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from ...radix import pack_tokens
from ..errors import ConfigError
from ..options import Size, check_name
from ..security.files import read_file
from .claims import Claims
from .heads import ANYONE, Head
from .salt import MIN_SECRET_BYTES
from .tenants import DEFAULT, Limits, Tenants

OPTION = "--tenants"
MAX_TENANTS = 4096
MAX_HEADS = 1024
MAX_HEAD_TOKENS = 1 << 20


def _tenant_name(name: str) -> str:
    return check_name(name, "tenant")


class _Tenant(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, AfterValidator(_tenant_name)]
    dram_quota: Size | None = None
    dram_floor: Size | None = None
    nvme_quota: Size | None = None
    nvme_floor: Size | None = None

    def limits(self) -> Limits:
        """In bytes."""
        return Limits(self.dram_quota, self.dram_floor or 0, self.nvme_quota, self.nvme_floor or 0)


class _SharedHead(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: Annotated[list[Annotated[int, Field(ge=-(2**31), lt=2**31)]], Field(max_length=MAX_HEAD_TOKENS)] = Field(
        default_factory=list[int]
    )
    file: Path | None = None
    written_by: Annotated[list[str], Field(min_length=1, max_length=MAX_TENANTS)]

    @model_validator(mode="after")
    def _one_source(self) -> "_SharedHead":
        if bool(self.tokens) == (self.file is not None):
            raise ValueError("needs either tokens or file")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    secret_file: Path
    tenant: Annotated[list[_Tenant], Field(min_length=1, max_length=MAX_TENANTS)]
    shared_head: Annotated[list[_SharedHead], Field(max_length=MAX_HEADS)] = Field(default_factory=list[_SharedHead])


def load_tenants(path: Path, *, dram_bytes: int, nvme_bytes: int, claims: Claims) -> Tenants:
    """What the file says, for tiers of these sizes. ConfigError names the file and the field."""
    said = _parse(path)
    limits: dict[str, Limits] = {}
    for place, each in enumerate(said.tenant):
        if each.name in limits:
            raise ConfigError(f"{OPTION}: {path}: tenant[{place}].name: {each.name!r} is given twice")
        limits[each.name] = each.limits()
        if not nvme_bytes and (each.nvme_quota or each.nvme_floor):
            raise ConfigError(f"{OPTION}: {path}: tenant {each.name!r} has limits for NVMe, and --nvme is not given")
    heads = [_head(path, place, each, limits) for place, each in enumerate(said.shared_head)]
    secret = _secret(path, said.secret_file)
    try:
        return Tenants(limits, secret, heads=heads, claims=claims, dram_bytes=dram_bytes, nvme_bytes=nvme_bytes)
    except ConfigError as error:
        raise ConfigError(f"{OPTION}: {path}: {error}") from None


def _parse(path: Path) -> _File:
    data = read_file(path, OPTION)
    try:
        return _File.model_validate(tomllib.loads(data.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{OPTION}: {path} is not TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{OPTION}: {path}: {_place(first['loc'])}: {_reason(first)}") from None


def _place(loc: tuple[int | str, ...]) -> str:
    """ "tenant[1].dram_floor" """
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the file"


def _reason(error: Any) -> str:
    if error["type"] == "extra_forbidden":
        return "there is no such key"
    return str(error["msg"]).removeprefix("Value error, ")


def _secret(path: Path, name: Path) -> bytes:
    where = path.parent / name
    secret = read_file(where, f"{OPTION}: {path}: secret_file", secret=True).strip()
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(
            f"{OPTION}: {path}: secret_file: {where} has {len(secret)} bytes, and {MIN_SECRET_BYTES} are the least; "
            f"make one with: openssl rand -hex 32"
        )
    return secret


def _head(path: Path, place: int, head: _SharedHead, known: dict[str, Limits]) -> Head:
    here = f"{OPTION}: {path}: shared_head[{place}]"
    for name in head.written_by:
        if name not in {*known, ANYONE, DEFAULT}:
            raise ConfigError(f"{here}.written_by: there is no tenant {name!r}")
    tokens = head.tokens
    if head.file is not None:
        text = read_file(path.parent / head.file, f"{here}.file").decode(errors="replace")
        tokens = [int(found) for found in re.findall(r"-?\d+", text)]
        if not tokens or len(tokens) > MAX_HEAD_TOKENS or not all(-(2**31) <= each < 2**31 for each in tokens):
            raise ConfigError(
                f"{here}.file: {head.file} must hold 1 to {MAX_HEAD_TOKENS} token ids, whole numbers of 32 bits"
            )
    return Head(pack_tokens(tokens), frozenset(head.written_by))
