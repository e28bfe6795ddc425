"""Kinds of values that options have: sizes, addresses, names, sockets. ValueError says what is wrong with one."""

import ipaddress
import os
import re
import tempfile
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from .placement.policies import POLICY_NAMES

MAX_UDS_PATH_BYTES = 107  # sun_path of struct sockaddr_un, less its final zero

_UNITS = {"": 1, "B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40} | {
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


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


def flag(name: str) -> str:
    """How the command line spells the option of that name."""
    return "--" + name.replace("_", "-")
