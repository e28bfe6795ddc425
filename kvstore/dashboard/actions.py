"""Actions: what a viewer may have done, by the very calls that the CLI makes, with the same rules and the same audit
log; only that they come from within the process."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from google.protobuf.message import Message

from ...proto import FieldError
from ..security.audit import AuditLog
from ..security.edge import act_as
from ..security.guard import Denied
from ..security.identity import Identity
from ..security.limits import check
from ..security.permissions import CALLS
from ..service.servicer import Servicer

log = logging.getLogger(__name__)

MOST_RUNNING = 8
Recognise = Callable[[], Identity | Denied]
"""Who it is, asked anew."""


class Refused(Exception):
    """It was not done; the message says why, to people."""


class Actions:
    """Calls methods of `servicer`."""

    def __init__(self, servicer: Servicer, audit: AuditLog) -> None:
        self._servicer, self._audit = servicer, audit
        self._running: set[asyncio.Task[Any]] = set()

    async def call(self, name: str, request: Message, recognise: Recognise, peer: str) -> Any:
        """The reply. Refused. What was begun ends, even if who waits for it does not."""
        return await asyncio.shield(self.begin(name, request, recognise, peer))

    def begin(self, name: str, request: Message, recognise: Recognise, peer: str) -> "asyncio.Task[Any]":
        """It goes on by itself, as a task that carries its caller. Refused: it may not, or too much goes on already."""
        call, who = CALLS[name], recognise()
        if isinstance(who, Denied):
            raise Refused("You are not signed in any more.")
        if not who.roles & call.roles:
            if call.asked is not None:
                self._audit.record(who, name, {}, "PERMISSION_DENIED", peer)
            raise Refused("This takes the role operator.")
        if len(self._running) >= MOST_RUNNING:
            raise Refused("Too much is being done at the moment; try again.")
        task = asyncio.create_task(self._serve(name, request, who, peer))
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waited has it; a task that nobody waited for is not to complain

    async def _serve(self, name: str, request: Message, who: Identity, peer: str) -> Any:
        act_as(who)
        call, outcome = CALLS[name], "INTERNAL"
        noted = dict(call.asked(request)) if call.asked is not None else {}
        try:
            check(request)
            reply = await getattr(self._servicer, name)(request, _WithinProcess())
            outcome = "OK"
            if call.came is not None and reply is not None:
                noted.update(call.came(reply))
            return reply
        except FieldError as error:
            outcome = "INVALID_ARGUMENT"
            raise Refused(f"{error.field}: {error.message}") from None
        except _Aborted as error:
            outcome = error.code.name
            raise Refused(str(error)) from None
        except asyncio.CancelledError:
            outcome = "CANCELLED"
            raise
        except Exception as error:  # as at the gRPC edge: the log has what it was
            log.exception("%s failed", name)
            raise Refused("It failed; the log of the node says why.") from error
        finally:
            if call.asked is not None:
                self._audit.record(who, name, noted, outcome, peer)


class _Aborted(Exception):
    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class _WithinProcess:
    """What the servicer's methods use of a gRPC context."""

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise _Aborted(code, details)

    async def write(self, message: Message) -> None:
        """What a stream says is seen in the status, too."""
        del message
