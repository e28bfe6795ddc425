"""What a sidecar's configuration says, held against this machine: files, sockets, ports, certificates."""

import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from cryptography import x509

from ..config import ServeConfig
from ..errors import ConfigError
from ..options import is_loopback, split_host_port
from ..security.files import read_file
from ..security.identities import known_callers
from ..security.keyring import KeyRing
from ..security.tls import Tls
from .finding import Finding, fail, ok, warn

EXPIRES_SOON_S = 14 * 86400.0
_CONNECT_S = 1.0


def look_at_setup(config: ServeConfig) -> Iterator[Finding]:
    """Without the NVMe paths, which are the disk's, and without Valkey, which is a service."""
    yield from _secrets(config)
    yield look_at_socket(config.uds)
    for option, address in (
        ("--listen", config.listen),
        ("--http", config.http),
        ("--bulk-listen", config.bulk_listen),
    ):
        if address is not None:
            yield look_at_port(option, address)


def _secrets(config: ServeConfig) -> Iterator[Finding]:
    """Certificates, identities, keys: as the start would read them."""
    try:
        known_callers(config.identities, config.tls_ca)
        Tls.of(config.tls_cert, config.tls_key, config.tls_ca)
        if config.nvme_keys is not None:
            KeyRing.load(config.nvme_keys, os.environ)
    except ConfigError as error:
        yield fail("security files", str(error), "mend the file; a sidecar would not start with it")
        return
    for option, path in (("--tls-cert", config.tls_cert), ("--tls-ca", config.tls_ca)):
        if path is not None:
            yield certificate(option, path, time.time())
    named = [path for path in (config.identities, config.nvme_keys, config.tls_cert, config.tls_ca) if path is not None]
    if named:
        yield ok("security files", ", ".join(map(str, named)))


def certificate(option: str, path: Path, now_s: float) -> Finding:
    """How long it holds; the first to expire of a file of several."""
    what = f"certificate {path}"
    try:
        found = x509.load_pem_x509_certificates(read_file(path, option))
    except (ConfigError, ValueError) as error:
        return fail(what, str(error), f"give a PEM file as {option}")
    ends = min(each.not_valid_after_utc.timestamp() for each in found)
    begins = max(each.not_valid_before_utc.timestamp() for each in found)
    said = f"valid until {time.strftime('%Y-%m-%d', time.gmtime(ends))}"
    if ends <= now_s:
        return fail(what, f"expired on {said.rpartition(' ')[2]}", "replace the file; a running sidecar reads it again")
    if begins > now_s:
        return fail(what, "is not valid yet", "compare this machine's clock with the issuer's")
    if ends - now_s < EXPIRES_SOON_S:
        return warn(what, said, "replace it before; a running sidecar reads it again")
    return ok(what, said)


def look_at_socket(path: Path) -> Finding:
    """The sidecar's Unix socket, or where it would be."""
    what, parent = f"socket {path}", path.parent
    if not path.exists():
        there = next(each for each in (parent, *parent.parents) if each.exists())
        if not os.access(there, os.W_OK | os.X_OK):
            return fail(what, f"{there} cannot be written by this user", "choose another --uds, or run as its owner")
        found = there.stat()
        if there == parent and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
            return fail(what, f"others may write to {parent}", f"chmod go-w {parent}, or choose another --uds")
        return ok(what, "free; nobody listens there yet")
    found = path.stat()
    if not stat.S_ISSOCK(found.st_mode):
        return fail(what, "exists and is not a socket", "remove it, or choose another --uds")
    said = f"mode {stat.S_IMODE(found.st_mode):o}, owner {found.st_uid}"
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(str(path))
        except PermissionError:
            return fail(
                what, f"{said}: this user may not connect", "run the engine as the sidecar's user or in its group"
            )
        except (ConnectionRefusedError, TimeoutError) as error:
            do = "start `kvterrace serve`; it removes what a dead one left"
            return warn(what, f"{said}: nobody answers ({error.strerror or 'timed out'})", do)
        except OSError as error:
            return fail(what, f"{said}: {error.strerror}", "look at what is there")
    return ok(what, f"{said}, somebody answers")


def look_at_port(option: str, address: str) -> Finding:
    """Whether it can be listened on, or somebody does."""
    what = f"{option} {address}"
    host, port = split_host_port(address)
    if port == 0:
        return ok(what, "the system chooses a port at each start")
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        return fail(what, f"{host!r} cannot be resolved: {error.strerror}", "write an address of this machine")
    with socket.socket(family, kind, proto) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except PermissionError:
            return fail(what, "this user may not listen there", "choose a port above 1023")
        except OSError as error:
            return _taken(what, host, port, error)
    return ok(what, f"free{'' if is_loopback(host) else ', and other hosts can reach it'}")


def _taken(what: str, host: str, port: int, error: OSError) -> Finding:
    try:
        with socket.create_connection((host, port), _CONNECT_S):
            return ok(what, "somebody listens there: this sidecar, or something that has taken its port")
    except OSError:
        return fail(
            what, f"cannot be listened on: {error.strerror}", "write an address of this machine, and a free port"
        )
