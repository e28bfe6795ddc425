"""Options of the NVMe tier."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

from pydantic import BaseModel, BeforeValidator, Field
from pydantic_settings import NoDecode

from ..options import Size, parse_size


class NvmeOption(NamedTuple):
    """One path of the NVMe tier and the cap on what it may hold there."""

    path: Path
    capacity_bytes: int


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


class NvmeSettings(BaseModel):
    """See the fields' descriptions."""

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
    nvme_keys: Path | None = Field(
        default=None,
        description="Encrypt blocks on NVMe: a TOML file of mode 0600 with lines TENANT = KEY; the environment's "
        "KVTERRACE_KEYRING may hold keys instead.",
    )
    nvme_codec: Literal["none", "lossless"] = Field(
        default="none", description="none, or lossless: compress while that is faster than the disk."
    )
