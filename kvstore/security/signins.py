"""SignIns: browsers that showed a token once and carry a cookie since.

The cookie is a random number and no token: it means nothing to another node, nor to this one once it was restarted,
and ends with its sign-in. Whom the token belongs to is asked of the Guard each time, so that a token that is withdrawn
withdraws its sign-ins.
"""

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

LASTS_S = 12 * 3600.0
MOST = 256
_NAME = "kvterrace"


@dataclass(frozen=True, slots=True)
class _SignIn:
    authorization: str
    until_s: float


class SignIns:
    """most: at a time; the oldest makes room. Lost with the process."""

    def __init__(self, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._kept: OrderedDict[bytes, _SignIn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self, authorization: str) -> str:
        """The cookie's value for who showed this header's value, which the Guard knows."""
        cookie = secrets.token_urlsafe(32)
        self._kept[_digest(cookie)] = _SignIn(authorization, self._clock() + LASTS_S)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return cookie

    def authorization(self, cookie: str) -> str | None:
        """What was shown then; None: there is no such sign-in any more."""
        found = self._kept.get(_digest(cookie))
        if found is None or self._clock() < found.until_s:
            return found.authorization if found is not None else None
        self.end(cookie)
        return None

    def end(self, cookie: str) -> None:
        """Ending twice is harmless."""
        self._kept.pop(_digest(cookie), None)


def cookie_name(port: int, *, tls: bool) -> str:
    """Cookies know hosts, but no ports: with the port in its name, two nodes of one host do not sign each other out.
    The prefix is the browser's promise that nobody but this host has set it."""
    return f"__Host-{_NAME}-{port}" if tls else f"{_NAME}-{port}"


def cookie_of(header: str, name: str) -> str:
    """Its value in a Cookie header; "" when it is not there, or there twice: then somebody else has set one."""
    pairs = (each.strip().partition("=") for each in header.split(";"))
    found = [value for key, _, value in pairs if key == name]
    return found[0] if len(found) == 1 else ""


def set_cookie(name: str, value: str, *, tls: bool) -> str:
    """The Set-Cookie header; an empty value ends it."""
    lasts = f"Max-Age={LASTS_S:.0f}" if value else "Max-Age=0"
    return f"{name}={value}; Path=/; {lasts}; HttpOnly; SameSite=Strict{'; Secure' * tls}"


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode()).digest()
