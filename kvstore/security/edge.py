"""The gRPC edge: before a method of the servicer runs, its caller is known and may make the call, and its request is
within the limits. Administrative calls are written to the audit log once they are over.

Every method is served as a stream, whatever it is to its clients: the caller is judged before its request is read, so
that a stranger costs no memory.
"""

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from ...proto import FieldError
from .audit import AuditLog
from .guard import Caller, Denied, Guard
from .identity import Identity, Role
from .limits import check
from .permissions import Call, call_of

log = logging.getLogger(__name__)

_CALLER: ContextVar[Identity] = ContextVar("kvterrace_caller")
_NOBODY: frozenset[Role] = frozenset()
Context = grpc.aio.ServicerContext[Any, Any]


def identity_of(context: object) -> Identity:
    """Who made the call of this context. LookupError outside of one: nobody is ever taken for somebody."""
    del context  # each call is a task of its own, and carries its caller
    return _CALLER.get()


def act_as(who: Identity) -> None:
    """What this task goes on to call of the servicer, within the process, is called by `who`."""
    _CALLER.set(who)


class Edge(grpc.aio.ServerInterceptor):
    """calls: what a full method name needs; None = it is refused."""

    def __init__(self, guard: Guard, audit: AuditLog, calls: Callable[[str], Call | None] = call_of) -> None:
        self._guard, self._audit, self._calls = guard, audit, calls

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """The method with the edge around it; None = there is no such method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = cast(Any, handler_call_details).method
        name, call = method.rpartition("/")[2], self._calls(method)
        inner = _as_stream(handler)

        async def guarded(frames: AsyncIterator[Any], context: Context) -> None:
            caller = _caller_of(context)
            who = self._guard.admit(caller, call.roles if call is not None else _NOBODY, name)
            if isinstance(who, Denied):
                if call is not None and call.asked is not None and who.known:
                    self._audit.record(self._known(caller), name, {}, "PERMISSION_DENIED", caller.peer)
                await _refuse(context, who)
                return
            _CALLER.set(who)
            noted: dict[str, object] = {}
            outcome = "CANCELLED"
            try:
                await inner(frames, context, call, noted)
                outcome = "OK"
            except grpc.aio.AbortError:
                outcome = _code(context)
                raise
            except DecodeError:  # of a stream
                outcome = "INVALID_ARGUMENT"
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no such message")
            except Exception:
                log.exception("%s failed", name)
                outcome = "INTERNAL"
                await context.abort(grpc.StatusCode.INTERNAL, "the call failed; the server's log says why")
            finally:
                if call is not None and call.asked is not None:
                    self._audit.record(who, name, noted, outcome, caller.peer)

        return grpc.stream_stream_rpc_method_handler(
            guarded,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _known(self, caller: Caller) -> Identity | None:
        found = self._guard.recognise(caller)
        return found if isinstance(found, Identity) else None


_Inner = Callable[[AsyncIterator[Any], Context, Call | None, dict[str, object]], Awaitable[None]]


def _as_stream(handler: Any) -> _Inner:
    """Serve a method of any kind from its frames; notes for the audit log what was asked and what came of it."""
    one_in, one_out = not handler.request_streaming, not handler.response_streaming
    kinds = {(True, True): "unary_unary", (True, False): "unary_stream", (False, True): "stream_unary"}
    method = getattr(handler, kinds.get((one_in, one_out), "stream_stream"))

    async def serve(frames: AsyncIterator[Any], context: Context, call: Call | None, noted: dict[str, object]) -> None:
        request = await _only(context) if one_in else frames
        if one_in and call is not None and call.asked is not None:
            noted.update(_said(call.asked, request))
        if inspect.isasyncgenfunction(method):
            async for reply in method(request, context):
                await context.write(reply)
            return
        reply = await method(request, context)
        if one_out:
            if call is not None and call.came is not None:
                noted.update(_said(call.came, reply))
            await context.write(reply)

    return serve


async def _only(context: Context) -> Any:
    """The one request, read and within the limits; else the call ends."""
    try:
        request: Any = await context.read()
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is no such message")
    if not isinstance(request, Message):  # but grpc.aio.EOF
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "there is no request")
    try:
        check(request)
    except FieldError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{error.field}: {error.message}")
    return request


def _said(what: Callable[[Any], Mapping[str, object]], message: Any) -> Mapping[str, object]:
    """The audit log may not fail a call."""
    try:
        return what(message)
    except Exception:
        log.exception("an audit record lacks what was asked")
        return {}


def _caller_of(context: Context) -> Caller:
    peer, proof = context.peer(), context.auth_context()
    names = [*proof.get("x509_common_name", ()), *proof.get("x509_subject_alternative_name", ())]
    said = [value for key, value in context.invocation_metadata() or () if key == "authorization"]
    authorization = None if not said else str(said[0]) if len(said) == 1 else ""
    return Caller(peer, peer.startswith("unix:"), authorization, [_text(name) for name in names])


def _text(name: object) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


async def _refuse(context: Context, denied: Denied) -> None:
    if denied.known:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "this identity may not make this call")
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid token or client certificate is needed")


def _code(context: Context) -> str:
    code = cast(object, context.code())
    return code.name if isinstance(code, grpc.StatusCode) else str(code)
