"""What a browser must be kept from: pages of other sites that have it call this server on their behalf.

- Another site's script can send requests, and open WebSockets, with this server's cookies or from this host. Browsers
  say whose script it is (Origin), so what may change something is refused unless it is this server's own.
- A name of another site can be made to point here (DNS rebinding); its pages are then of the same origin as this
  server. They lack its cookies, but where nobody is asked who they are that helps nobody, so there this server answers
  only to its addresses and names.
"""

import ipaddress
import socket
from collections.abc import Mapping
from typing import Any

_CHANGES_NOTHING = frozenset({"GET", "HEAD", "OPTIONS"})
PROGRAMS = frozenset({"/health", "/ready", "/metrics", "/status.json", "/score"})
"""Routes that programs call, on other hosts by whatever name these know."""

PAGE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with "no-referrer" browsers say Origin: null even of our own forms
    (
        b"content-security-policy",
        # NiceGUI's page has its start-up script in line, and Vue compiles the templates in the browser.
        b"default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
        b"img-src 'self' data:; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
)


def misled(scope: Mapping[str, Any], headers: Mapping[bytes, bytes], *, asks: bool) -> str:
    """Why this request may not be a browser's own wish; "" = it may be. asks: callers must prove who they are."""
    host = headers.get(b"host", b"").decode("latin-1").lower()
    if not asks and host and not _is_ours(scope, host):
        return "this server answers to its address or to localhost, not to the name in the request's Host header"
    origin = headers.get(b"origin")
    if origin is None or (scope["type"] == "http" and scope["method"] in _CHANGES_NOTHING):
        return ""
    theirs = origin.decode("latin-1").lower().partition("://")[2]
    if not theirs or _without_default_port(theirs) != _without_default_port(host):
        return "the request comes from a page of another site"
    return ""


def _is_ours(scope: Mapping[str, Any], host: str) -> bool:
    name = _name_of(host)
    if name == "localhost" or name.endswith(".localhost") or name == socket.gethostname().lower() or _is_address(name):
        return True
    server = str((scope.get("server") or ("",))[0])
    beyond = _is_address(server) and not ipaddress.ip_address(server).is_loopback
    return beyond and scope["type"] == "http" and scope["path"] in PROGRAMS


def _name_of(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_default_port(host: str) -> str:
    return host.removesuffix(":80").removesuffix(":443")
