"""Guard: decides who a caller is, for gRPC and HTTP alike. Counts whom it turns away, and says little to them."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .files import Watched
from .identities import MAX_TOKEN_CHARS, Identities
from .identity import LOCAL, Identity, Role

log = logging.getLogger(__name__)

LOG_EVERY_S = 10.0
_BEARER = "bearer "


@dataclass(frozen=True, slots=True)
class Caller:
    """What is known of one before anything is believed. peer: its address, for logs; local: it came by the Unix socket;
    authorization: of its headers, None = none; names: in its certificate, which was verified."""

    peer: str
    local: bool = False
    authorization: str | None = None
    names: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Denied:
    """reason: "no_credentials", "bad_token", "unknown_certificate" or "role"."""

    reason: str

    @property
    def known(self) -> bool:
        """Whether the caller is known, and only may not do this."""
        return self.reason == "role"


class Guard:
    """identities: None = only certificates count, and whoever has one may do all. asks: callers by TCP must prove who
    they are; without it they are LOCAL."""

    def __init__(
        self,
        identities: Watched[Identities] | None = None,
        *,
        asks: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identities = identities
        self._asks = asks
        self._clock = clock
        self._quiet_until: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()

    @property
    def asks(self) -> bool:
        """Whether callers by TCP must prove who they are."""
        return self._asks

    def admit(self, caller: Caller, roles: frozenset[Role], what: str) -> Identity | Denied:
        """Who it is, when it has one of `roles`. what: it wants, for the log."""
        found = self.recognise(caller)
        if isinstance(found, Identity) and not found.roles & roles:
            name, found = found.name, Denied("role")
            self._count(found, caller, f"{name} may not {what}")
        elif isinstance(found, Denied):
            self._count(found, caller, what)
        return found

    def recognise(self, caller: Caller) -> Identity | Denied:
        """Who it is. A token counts before a certificate, and before the socket it came by."""
        known = self._identities.get() if self._identities is not None else None
        if caller.authorization is not None:
            token = _token(caller.authorization)
            found = known.by_token(token) if known is not None and token else None
            return found or Denied("bad_token")
        if caller.names:
            if known is None:
                return Identity(_printable(caller.names[0]), "", frozenset(Role))
            return known.by_certificate(caller.names) or Denied("unknown_certificate")
        if caller.local or not self._asks:
            return LOCAL
        return Denied("no_credentials")

    def _count(self, denied: Denied, caller: Caller, what: str) -> None:
        """Who guesses tokens fills the counter, not the log."""
        reason, now = denied.reason, self._clock()
        self.failures[reason] += 1
        if now < self._quiet_until.get(reason, now):
            self._unsaid[reason] += 1
            return
        self._quiet_until[reason] = now + LOG_EVERY_S
        more = self._unsaid.pop(reason, 0)
        log.warning(
            "refused %s (%s): %s%s", caller.peer, reason, _printable(what), f", and {more} others" if more else ""
        )


def _printable(name: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in name[:128])


def _token(authorization: str) -> str:
    """Of "Bearer TOKEN"; "" = it is none."""
    if len(authorization) > len(_BEARER) + MAX_TOKEN_CHARS or not authorization.lower().startswith(_BEARER):
        return ""
    return authorization[len(_BEARER) :].strip()
