"""Addresses of a store of last resort: what a URL says, checked before anything connects.

file:///mnt/shared/kv
s3://bucket/prefix?endpoint=https://s3.example.com&region=eu-central-1
redis://host:6379/0, and whatever kvstore/cluster/address.py knows
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[a-z0-9\-]{1,64}")
_MAX_PREFIX = 512  # of the 1024 bytes that a key of S3 may have
_SCHEMES = "file://, s3://, redis://, rediss://, redis+sentinel://, redis+cluster://"


@dataclass(frozen=True, slots=True)
class DirectoryAddress:
    """path: absolute."""

    path: Path


@dataclass(frozen=True, slots=True)
class S3Address:
    """prefix: "" or ends in a slash. endpoint, region: "" = boto3's usual."""

    bucket: str
    prefix: str
    endpoint: str
    region: str


@dataclass(frozen=True, slots=True)
class ValkeyAddress:
    """url: as it was given, a password included."""

    url: str


RemoteAddress: TypeAlias = DirectoryAddress | S3Address | ValkeyAddress


def parse_remote(url: str) -> RemoteAddress:
    """ValueError names the part that is wrong, and never repeats a password."""
    scheme = url.partition("://")[0]
    if scheme == "file":
        return _directory(url)
    if scheme == "s3":
        return _bucket(url)
    if scheme.partition("+")[0] in ("redis", "rediss", "valkey", "valkeys"):
        from ...cluster.address import parse_address  # noqa: PLC0415  # its package imports redis, which takes a while

        parse_address(url)
        return ValkeyAddress(url)
    raise ValueError(f"{scheme!r} is no scheme of a store; there are {_SCHEMES}")


def _directory(url: str) -> DirectoryAddress:
    parts = urlsplit(url)
    if parts.netloc:
        raise ValueError(f"{parts.netloc!r} is read as a host; write file:/// with three slashes and the mounted path")
    if parts.query or parts.fragment:
        raise ValueError(f"a file:// address has no options, such as {parts.query or parts.fragment!r}")
    path = unquote(parts.path)
    if not path.startswith("/") or path == "/" or "\0" in path:
        raise ValueError(f"{path!r} is not the absolute path of a folder")
    return DirectoryAddress(Path(path))


def _bucket(url: str) -> S3Address:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ValueError("s3:// takes no user or password; boto3 finds credentials in its usual places")
    if _BUCKET.fullmatch(parts.netloc) is None:
        raise ValueError(f"{parts.netloc!r} is not the name of a bucket")
    if parts.fragment:
        raise ValueError(f"the address has a fragment, {'#' + parts.fragment!r}")
    prefix = unquote(parts.path).strip("/")
    if len(prefix.encode()) > _MAX_PREFIX or not prefix.isprintable():
        raise ValueError(f"the prefix must be printable and have {_MAX_PREFIX} bytes at most")
    options = {"endpoint": "", "region": ""}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in options:
            raise ValueError(f"{name!r} is no option of an s3:// address; there are endpoint and region")
        options[name] = value
    endpoint = urlsplit(options["endpoint"])
    if options["endpoint"] and (endpoint.scheme not in ("http", "https") or not endpoint.hostname):
        raise ValueError("endpoint must be a URL such as https://s3.example.com")
    if endpoint.username or endpoint.password:
        raise ValueError("endpoint takes no user or password; boto3 finds credentials in its usual places")
    if options["region"] and _REGION.fullmatch(options["region"]) is None:
        raise ValueError(f"region={options['region']!r} is no name of a region")
    return S3Address(parts.netloc, prefix + "/" if prefix else "", options["endpoint"], options["region"])
