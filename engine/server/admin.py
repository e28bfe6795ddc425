"""Who may call the admin routes: operators, and where nobody is asked for a key, programs on this machine."""

import ipaddress
from collections.abc import Mapping

from starlette.requests import Request

from .errors import ApiError
from .guard import calls_as

#: Set by reverse proxies, whose own address is often loopback, and by browsers.
TELLTALES = ("x-forwarded-for", "forwarded", "origin")


def operators_only(request: Request) -> None:
    """ApiError 403 unless an operator calls (the door has seen to that), or, where nobody is asked, this machine."""
    if calls_as(request.scope) is not None:
        refuse_web_pages(request.headers)
    else:
        require_local(request.headers, request.client.host if request.client else None)


def require_local(headers: Mapping[str, str], host: str | None) -> None:
    """ApiError 403 unless the call comes straight from this machine: not through a proxy, not from a web page."""
    if host is None or not is_loopback(host) or any(name in headers for name in TELLTALES):
        raise ApiError(403, "Admin calls are answered to programs on this machine only.", code="forbidden")


def refuse_web_pages(headers: Mapping[str, str]) -> None:
    """ApiError 403 for a web page's call: a browser shows its user's certificate without asking him."""
    if "origin" in headers:
        raise ApiError(403, "Admin calls are not answered to web pages.", code="forbidden")


def is_loopback(host: str) -> bool:
    """For a numeric address, IPv4 in IPv6 included."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
