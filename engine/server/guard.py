"""Who may call: API keys and client certificates, and what each route asks of them.

/health and /ready stay open, since probes have nothing to show; /ready tells strangers its one word only.
"""

import dataclasses
from dataclasses import dataclass, field

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...connector.edge import (
    AuditLog,
    Denied,
    Guard,
    Identity,
    Role,
    Tls,
    caller_of,
    known_callers,
)
from ..config import EngineConfig
from .errors import ApiError, forbidden, unauthorized

OPEN = frozenset({"/health", "/ready"})
ADMINISTRATION = frozenset({Role.OPERATOR})
WATCHING = ADMINISTRATION | {Role.READER}
COMPLETIONS = frozenset({Role.USER})
TOKENS = frozenset({"/tokenize", "/detokenize"})

_CALLER = "kvterrace.caller"
_TRUSTED = "kvterrace.trusted"
_SHOWN_CHARS = 100


@dataclass(frozen=True, slots=True)
class Access:
    """guard: decides who a caller is, None = nobody is asked. keys: whether keys count; otherwise what OpenAI clients
    send as one is passed over. tls: of the listener, None = it speaks plain HTTP."""

    guard: Guard | None = None
    keys: bool = False
    tls: Tls | None = None
    audit: AuditLog = field(default_factory=AuditLog)


def make_access(config: EngineConfig) -> Access:
    """What the options come to. ConfigError: a file cannot be read or used."""
    keys = known_callers(config.api_keys, config.tls_ca, "--api-keys")
    tls = Tls.of(config.tls_cert, config.tls_key, config.tls_ca)
    asks = keys is not None or config.tls_ca is not None
    return Access(Guard(keys, asks=True) if asks else None, keys is not None, tls)


def needed_for(path: str) -> frozenset[Role]:
    """The roles of which one lets a caller in. A route that nobody thought of here is for operators."""
    if path == "/v1/models" or path.startswith("/v1/models/"):
        return COMPLETIONS | WATCHING
    if path.startswith("/v1/") or path in TOKENS:
        return COMPLETIONS
    return WATCHING if path in ("/metrics", "/status.json") else ADMINISTRATION


class Door:
    """ASGI around the routes; refuses before a request's body is read. With keys, a key that is shown counts before a
    certificate."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Nothing here has a WebSocket."""
        guard = self._access.guard
        if scope["type"] != "http":
            if scope["type"] == "lifespan" or guard is None:
                await self._app(scope, receive, send)
            return
        refusal = self._judge(guard, scope) if guard is not None else None
        app = self._app if refusal is None else JSONResponse(refusal.body(), refusal.status, dict(refusal.headers))
        await app(scope, receive, self._audited(scope, send) if _is_admin(scope) else send)

    def _judge(self, guard: Guard, scope: Scope) -> ApiError | None:
        caller, path = caller_of(scope), str(scope["path"])
        if not self._access.keys:
            caller = dataclasses.replace(caller, authorization=None)
        who = guard.recognise(caller)
        if isinstance(who, Identity):
            scope[_CALLER] = who
        if path in OPEN:
            scope[_TRUSTED] = isinstance(who, Identity) and bool(who.roles & WATCHING)
            return None
        found = guard.admit(caller, needed_for(path), path[:_SHOWN_CHARS])
        if isinstance(found, Denied):
            return forbidden() if found.known else unauthorized(shown=caller.authorization is not None)
        return None

    def _audited(self, scope: Scope, send: Send) -> Send:
        """`send`, which notes what came of it: nothing of strangers who were refused, whoever guesses fills no log."""

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                status, who = int(message["status"]), calls_as(scope)
                if who is not None or status < 400:
                    call = f"{scope['method']} {scope['path']}"
                    self._access.audit.record(who, call[:_SHOWN_CHARS], {}, str(status), caller_of(scope).peer)
            await send(message)

        return noted


def _is_admin(scope: Scope) -> bool:
    return str(scope["path"]).startswith("/admin/")


def is_trusted(scope: Scope) -> bool:
    """Whether an open route may tell this caller everything. Where nobody is asked, it may."""
    return scope.get(_TRUSTED, True)


def knows_all(scope: Scope) -> bool:
    """Whether this caller may know what others cached. Where nobody is asked, everybody may."""
    who = calls_as(scope)
    return who is None or bool(who.roles & WATCHING)


def calls_as(scope: Scope) -> Identity | None:
    """Who made this request; None = nobody was asked, or nobody is known."""
    return scope.get(_CALLER)
