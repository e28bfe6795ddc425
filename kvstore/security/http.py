"""The HTTP edge: ASGI around an app, so that a route which is added later is guarded from the start.

/health and /ready stay open, since who restarts or routes (kubelet, a load balancer) often has nothing to show; all
that they tell a stranger is that the node is there, and whether it takes work.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any, TypeAlias, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from .guard import Caller, Denied, Guard
from .identity import Role
from .tls import names_of

App: TypeAlias = Any
OPEN = frozenset({"/health", "/ready"})
ROLES = frozenset({Role.READER, Role.OPERATOR})
NAMES = "kvterrace.certificate_names"
TRUSTED = "kvterrace.trusted"
CALLER = "kvterrace.caller"  # the Identity of who was let in


class HttpEdge:
    """Serves `app` to whom `guard` lets in. What is open carries in its scope whether the caller is trusted."""

    def __init__(self, app: App, guard: Guard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """ASGI. Only HTTP; nothing here has a WebSocket."""
        if scope["type"] != "http":
            return
        caller, path = caller_of(scope), str(scope["path"])
        if path in OPEN:
            found = self._guard.recognise(caller)
            scope[TRUSTED] = not isinstance(found, Denied) and bool(found.roles & ROLES)
        else:
            found = self._guard.admit(caller, ROLES, path[:100])
            if isinstance(found, Denied):
                await _refuse(send, found)
                return
            scope[CALLER] = found
        await self._app(scope, receive, send)


class Certified:
    """Before one of uvicorn's protocols among the bases of a class: adds the names in the client's verified certificate
    to the scope of each of its requests."""

    app: Any

    def connection_made(self, transport: asyncio.Transport) -> None:
        """asyncio's."""
        cast(Any, super()).connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is None:
            return
        names, app = names_of(tls.getpeercert()), self.app

        async def named(scope: Any, receive: Any, send: Any) -> None:
            scope[NAMES] = names
            await app(scope, receive, send)

        self.app = named


class CertifiedProtocol(Certified, H11Protocol):
    """uvicorn's own parser, which is always there."""


def caller_of(scope: MutableMapping[str, Any]) -> Caller:
    """Who made the request of this ASGI scope, as far as it says."""
    said = [value for key, value in cast("list[tuple[bytes, bytes]]", scope["headers"]) if key == b"authorization"]
    authorization = None if not said else said[0].decode("latin-1") if len(said) == 1 else ""
    host = cast("tuple[str, int] | None", scope.get("client"))
    return Caller(host[0] if host else "", False, authorization, scope.get(NAMES, ()))


async def _refuse(send: Any, denied: Denied) -> None:
    status, said = (403, b"forbidden") if denied.known else (401, b"unauthorized")
    headers = [(b"content-type", b"application/json"), *([] if denied.known else [(b"www-authenticate", b"Bearer")])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"detail":"%s"}' % said})
