"""Clear and Retain at the gRPC edge: what is meant, checked; what came of it."""

import grpc

from ...proto import FieldError, Retention
from ...proto import kv_pb2 as pb
from ..errors import SessionRefused
from ..keeping import NotOne, Selection
from ..keyed import MIN_KEY_BYTES
from ..store import Store
from .frames import FrameError, check_tokens
from .stream import MAX_DEADLINE_S

FINGERPRINT_BYTES = 32
_RETENTION_FIELDS = {"priority", "ttl_s", "pinned"}


class BadRequest(ValueError):
    """A request that cannot be carried out; the message begins with the field."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


async def clear(store: Store, request: pb.ClearRequest) -> pb.ClearReply:
    """Carry it out. BadRequest."""
    which = _selection(request)
    if request.tokens and not request.fingerprint:
        raise _wrong("tokens", "need the fingerprint of their namespace")
    try:
        done = await store.keeping.clear(which, dry_run=request.dry_run)
    except (NotOne, SessionRefused) as error:
        raise _missing(error) from None
    return pb.ClearReply(blocks=done.blocks, bytes=done.size_bytes, fingerprint=done.fingerprint)


async def retain(store: Store, request: pb.RetainRequest) -> pb.RetainReply:
    """Carry it out. BadRequest."""
    which, said = _selection(request), request.retention
    if which == Selection():
        raise _wrong("fingerprint", "say which blocks: by fingerprint, tenant or key")
    if request.tokens and not request.fingerprint:
        raise _wrong("tokens", "need the fingerprint of their namespace")
    if not request.set or not set(request.set) <= _RETENTION_FIELDS:
        raise _wrong("set", f"must name some of {', '.join(sorted(_RETENTION_FIELDS))}")
    try:
        wish = Retention(said.priority, said.ttl_s, said.pinned)
        done = await store.keeping.retain(which, wish, list(request.set), below=request.below, dry_run=request.dry_run)
    except FieldError as error:
        raise _wrong(error.field, error.message) from None
    except (NotOne, SessionRefused) as error:
        raise _missing(error) from None
    return pb.RetainReply(blocks=done.blocks, fingerprint=done.fingerprint)


async def warm(store: Store, request: pb.WarmRequest) -> pb.WarmReply:
    """Carry it out. BadRequest."""
    if len(request.fingerprint) != FINGERPRINT_BYTES:
        raise _wrong("fingerprint", f"must have {FINGERPRINT_BYTES} bytes, not {len(request.fingerprint)}")
    if not 0 < request.deadline_s <= MAX_DEADLINE_S:
        raise _wrong("deadline_s", f"must be above 0 and at most {MAX_DEADLINE_S:.0f}")
    try:
        tokens = check_tokens(request.tokens)
    except FrameError as error:
        raise _wrong(error.field, error.message) from None
    done = await store.warm(request.fingerprint, tokens, request.deadline_s)
    if done is None:
        message = "fingerprint: no engine has opened a session on that namespace since the start"
        raise BadRequest(grpc.StatusCode.FAILED_PRECONDITION, message)
    return pb.WarmReply(tokens=done.tokens, brought=done.brought, reason=done.reason)


def _selection(request: pb.ClearRequest | pb.RetainRequest) -> Selection:
    """Checked field by field."""
    if len(request.fingerprint) not in {0, FINGERPRINT_BYTES}:
        raise _wrong("fingerprint", f"must have {FINGERPRINT_BYTES} bytes or none, not {len(request.fingerprint)}")
    if request.tenant and request.fingerprint:
        raise _wrong("tenant", "not together with a fingerprint")
    if request.key and request.tokens:
        raise _wrong("key", "not together with tokens")
    if request.key and len(request.key) < MIN_KEY_BYTES:
        raise _wrong("key", f"must have {MIN_KEY_BYTES} bytes at least, not {len(request.key)}")
    try:
        tokens = check_tokens(request.tokens)
    except FrameError as error:
        raise _wrong(error.field, error.message) from None
    return Selection(request.fingerprint, request.tenant, request.key, tokens)


def _wrong(field: str, message: str) -> BadRequest:
    return BadRequest(grpc.StatusCode.INVALID_ARGUMENT, f"{field}: {message}")


def _missing(error: NotOne | SessionRefused) -> BadRequest:
    several = isinstance(error, NotOne) and error.several
    code = grpc.StatusCode.FAILED_PRECONDITION if several else grpc.StatusCode.NOT_FOUND
    return BadRequest(code, str(error))
