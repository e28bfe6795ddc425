"""Addresses of Valkey: what a URL says, checked before anything connects.

redis://, rediss:// (TLS), with +sentinel or +cluster behind the scheme for those; valkey:// and valkeys:// are the
same.

    redis://user:password@host:6379/0
    rediss://host:6379?ssl_ca_certs=/etc/ca.pem
    redis+sentinel://host:26379,host:26379/service/0
    redis+cluster://host:6379,host:6379
"""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

_SCHEMES = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
_KINDS = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}
_DEFAULT_PORTS = {"single": 6379, "cluster": 6379, "sentinel": 26379}
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")
_CERT_REQS = ("required", "optional", "none")
_BOOLS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class Address:
    """kind: "single", "sentinel" or "cluster". service: the master's name for a sentinel. options: TLS ones, by the
    names redis-py has for them. text: without passwords, for people."""

    kind: str
    hosts: tuple[tuple[str, int], ...]
    tls: bool
    username: str | None
    password: str | None
    db: int
    service: str
    options: Mapping[str, str | bool]
    sentinel: Mapping[str, str]
    text: str


def parse_address(url: str) -> Address:
    """ValueError names the part that is wrong, and never repeats a password."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"the address of Valkey is no URL: {error}") from None
    base, _, suffix = parts.scheme.partition("+")
    if base not in _SCHEMES or suffix not in _KINDS:
        known = "redis://, rediss://, redis+sentinel://, redis+cluster://"
        raise ValueError(f"{parts.scheme!r} is no scheme of a Valkey address; there are {known}")
    kind, tls = _KINDS[suffix], _SCHEMES[base]
    user, at, hosts = parts.netloc.rpartition("@")
    if parts.fragment:
        raise ValueError(f"the address has a fragment, {'#' + parts.fragment!r}; write a # of a password as %23")
    name, _, password = user.partition(":")
    found = tuple(_host(each, _DEFAULT_PORTS[kind]) for each in hosts.split(","))
    if kind == "single" and len(found) > 1:
        raise ValueError(f"{hosts!r} are several hosts; only redis+sentinel:// and redis+cluster:// take them")
    service, db = _path(parts.path, kind)
    options = dict(_options(parts.query, kind, tls))
    return Address(
        kind=kind,
        hosts=found,
        tls=tls,
        username=unquote(name) or None,
        password=unquote(password) or None,
        db=db,
        service=service,
        options={key: value for key, value in options.items() if key in _TLS_OPTIONS},
        sentinel={
            key.removeprefix("sentinel_"): str(value) for key, value in options.items() if key in _SENTINEL_OPTIONS
        },
        text=f"{parts.scheme}://{'***@' if at else ''}{hosts}{parts.path}",
    )


def _host(text: str, default_port: int) -> tuple[str, int]:
    """("::1", 6379) of "[::1]:6379"."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(default_port)
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{text!r}: write an IPv6 address in brackets, such as [::1]:{default_port}")
    host = host.strip("[]")
    if not host:
        raise ValueError(f"{text!r} has no host")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r}: {port!r} is not a port (1 to 65535)")
    return host, int(port)


def _path(path: str, kind: str) -> tuple[str, int]:
    """Service and database number."""
    pieces = [unquote(piece) for piece in path.strip("/").split("/") if piece]
    service = ""
    if kind == "sentinel":
        if not pieces:
            raise ValueError(
                "a redis+sentinel:// address needs the service's name, such as redis+sentinel://h:26379/main"
            )
        service = pieces.pop(0)
    if not pieces:
        return service, 0
    if len(pieces) > 1 or not pieces[0].isdecimal():
        raise ValueError(f"{'/'.join(pieces)!r} is not the number of a database")
    if kind == "cluster" and int(pieces[0]):
        raise ValueError(f"a Valkey cluster has only database 0, not {pieces[0]}")
    return service, int(pieces[0])


def _options(query: str, kind: str, tls: bool) -> list[tuple[str, str | bool]]:
    """Those of the query, checked."""
    known = (*(_TLS_OPTIONS if tls else ()), *(_SENTINEL_OPTIONS if kind == "sentinel" else ()))
    found: list[tuple[str, str | bool]] = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            more = "" if tls or not name.startswith("ssl_") else "; TLS needs rediss://"
            raise ValueError(f"{name!r} is no option of this address{more}")
        if name == "ssl_cert_reqs" and value not in _CERT_REQS:
            raise ValueError(f"ssl_cert_reqs={value!r} is none of {', '.join(_CERT_REQS)}")
        if name == "ssl_check_hostname":
            if value.lower() not in _BOOLS:
                raise ValueError(f"ssl_check_hostname={value!r} is neither true nor false")
            found.append((name, _BOOLS[value.lower()]))
        else:
            found.append((name, value))
    return found
