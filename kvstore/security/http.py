"""The HTTP edge: ASGI around an app, so that a route which is added later is guarded from the start, WebSockets too.

/health and /ready stay open, since who restarts or routes (kubelet, a load balancer) often has nothing to show; all
that they tell a stranger is that the node is there, and whether it takes work. Programs show a token or a certificate
with each request; browsers sign in at /login with a token, and carry a cookie from then on (signins.py).
"""

import asyncio
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, TypeAlias, cast
from urllib.parse import parse_qs

from uvicorn.protocols.http.h11_impl import H11Protocol

from .browsers import PAGE_HEADERS, misled
from .guard import Caller, Denied, Guard
from .identities import MAX_TOKEN_CHARS
from .identity import Identity, Role
from .pages import page, sign_in_page
from .signins import SignIns, cookie_name, cookie_of, set_cookie
from .tls import names_of

App: TypeAlias = Any
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
OPEN = frozenset({"/health", "/ready"})
ROLES = frozenset({Role.READER, Role.OPERATOR})
NAMES = "kvterrace.certificate_names"
TRUSTED = "kvterrace.trusted"
CALLER = "kvterrace.caller"  # the Identity of who was let in
RECOGNISE = "kvterrace.recognise"  # asks again who that is: a token may be withdrawn while a page is open
MAX_FORM_BYTES = 2 * MAX_TOKEN_CHARS + 1024


class HttpEdge:
    """Serves `app` to whom `guard` lets in, and what it takes to sign in."""

    def __init__(self, app: App, guard: Guard, signins: SignIns | None = None) -> None:
        self._app, self._guard = app, guard
        self._signins = signins or SignIns()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """ASGI."""
        if scope["type"] not in ("http", "websocket"):
            return
        headers, path = dict(cast("Headers", scope["headers"])), str(scope["path"])
        if path in OPEN:
            found = self._guard.recognise(self._caller_of(scope, headers))
            scope[TRUSTED] = not isinstance(found, Denied) and bool(found.roles & ROLES)
            await self._app(scope, receive, send)
        elif why := misled(scope, headers, asks=self._guard.asks):
            await _answer(scope, send, 403, b'{"detail":"%s"}' % why.encode(), _JSON)
        elif path in ("/login", "/logout") and scope["type"] == "http" and self._guard.asks:
            await self._sign(scope, headers, receive, send)
        else:
            await self._let_in(scope, headers, receive, send)

    async def _let_in(self, scope: dict[str, Any], headers: Mapping[bytes, bytes], receive: Any, send: Any) -> None:
        caller = self._caller_of(scope, headers)
        if scope["path"] == "/" and _wants_page(scope, headers) and self._guard.recognise(caller) == _NOBODY_YET:
            await _go_to(scope, send, b"/login")  # where everybody begins: nothing to count or to log
            return
        found = self._guard.admit(caller, ROLES, str(scope["path"])[:100])
        if isinstance(found, Denied):
            await _refuse(scope, headers, send, found)
            return
        scope[CALLER] = found
        scope[RECOGNISE] = self._recognising(scope, headers)
        await self._app(scope, receive, send)

    def _recognising(
        self, scope: MutableMapping[str, Any], headers: Mapping[bytes, bytes]
    ) -> Callable[[], Identity | Denied]:
        return lambda: self._guard.recognise(self._caller_of(scope, headers))

    def _caller_of(self, scope: MutableMapping[str, Any], headers: Mapping[bytes, bytes]) -> Caller:
        """What it shows itself counts before the cookie."""
        caller = caller_of(scope)
        cookie = cookie_of(headers.get(b"cookie", b"").decode("latin-1"), _cookie_name(scope))
        if caller.authorization is not None or not cookie:
            return caller
        kept = self._signins.authorization(cookie)
        return caller if kept is None else Caller(caller.peer, authorization=kept)

    async def _sign(self, scope: dict[str, Any], headers: Mapping[bytes, bytes], receive: Any, send: Any) -> None:
        """In at /login, out at /logout."""
        name, tls = _cookie_name(scope), _is_tls(scope)
        if scope["path"] == "/logout":
            if scope["method"] != "POST":  # a link to it must not sign anybody out
                await _answer(scope, send, 405, b'{"detail":"Method Not Allowed"}', [*_JSON, (b"allow", b"POST")])
                return
            self._signins.end(cookie_of(headers.get(b"cookie", b"").decode("latin-1"), name))
            await _go_to(scope, send, b"/login", set_cookie(name, "", tls=tls))
        elif scope["method"] in ("GET", "HEAD"):
            await _answer(scope, send, 200, sign_in_page(), _HTML)
        elif scope["method"] == "POST":
            token = _token_in(await _body(receive))
            caller = Caller(caller_of(scope).peer, authorization=f"Bearer {token}")
            found = self._guard.admit(caller, ROLES, "/login")
            if isinstance(found, Denied):
                await _answer(scope, send, 401, sign_in_page(_TROUBLE[found.known]), _HTML)
                return
            await _go_to(scope, send, b"/", set_cookie(name, self._signins.begin(f"Bearer {token}"), tls=tls))
        else:
            await _answer(scope, send, 405, b'{"detail":"Method Not Allowed"}', [*_JSON, (b"allow", b"GET, POST")])


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


_JSON: Headers = [(b"content-type", b"application/json")]
_HTML: Headers = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"no-store"), *PAGE_HEADERS]
_TROUBLE = {
    False: "Nobody here has that token.",
    True: "That token is known, but its identity has neither the role reader nor operator.",
}
_NOBODY_YET = Denied("no_credentials")
_FORBIDDEN = "<p>This identity has neither the role reader nor operator, which it takes to look at this node.</p>"


async def _refuse(scope: dict[str, Any], headers: Mapping[bytes, bytes], send: Any, denied: Denied) -> None:
    """A browser that wants a page is led to where it can sign in."""
    wants_page = _wants_page(scope, headers)
    if denied.known:
        text, kind = (page("Not yours to see", _FORBIDDEN), _HTML) if wants_page else (b'{"detail":"forbidden"}', _JSON)
        await _answer(scope, send, 403, text, kind)
    elif wants_page and scope["path"] == "/":
        await _go_to(scope, send, b"/login")
    else:
        asks = [*_JSON, (b"www-authenticate", b"Bearer")]
        await _answer(scope, send, 401, b'{"detail":"unauthorized"}', asks)


def _wants_page(scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> bool:
    return scope["type"] == "http" and scope["method"] == "GET" and b"text/html" in headers.get(b"accept", b"")


async def _go_to(scope: dict[str, Any], send: Any, path: bytes, cookie: str = "") -> None:
    where = [(b"location", path), (b"cache-control", b"no-store")]
    await _answer(scope, send, 303, b"", [*where, *([(b"set-cookie", cookie.encode())] if cookie else [])])


async def _answer(scope: dict[str, Any], send: Any, status: int, body: bytes, headers: Headers) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})  # before it was accepted: answered with 403
        return
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": body})


async def _body(receive: Any) -> bytes:
    """b"" when it is longer than a form with a token may be."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or sum(map(len, parts)) > MAX_FORM_BYTES:
            return b""
        if not message.get("more_body"):
            return b"".join(parts)


def _token_in(form: bytes) -> str:
    said = parse_qs(form.decode("latin-1"), max_num_fields=4).get("token", [])
    return said[0].strip() if len(said) == 1 else ""


def _is_tls(scope: MutableMapping[str, Any]) -> bool:
    return scope.get("scheme") in ("https", "wss")


def _cookie_name(scope: MutableMapping[str, Any]) -> str:
    server = scope.get("server") or ("", 0)
    return cookie_name(int(server[1] or 0), tls=_is_tls(scope))
