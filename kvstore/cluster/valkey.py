"""Valkey: calls scripts there, each within a deadline, and knows whether it is there at all.

Down until a probe succeeds; down again after a connection that fails, or `TRIES` calls in a row that do. While it is
down a call costs nothing: it raises Unavailable("down") at once. Whoever renews the membership probes, with a jittered
back-off, so that the return is noticed without anybody's request having paid for it. Used from one event loop.
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from redis.asyncio import BlockingConnectionPool, Connection, Redis, RedisCluster, Sentinel, SSLConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from .address import Address, parse_address

TIMEOUT_S = 1.0
CONNECTIONS = 16
TRIES = 3  # failed calls in a row
TELLING_S = 0.02  # a shorter deadline that was missed says nothing of Valkey's health
FIRST_BACKOFF_S = 0.2
MAX_BACKOFF_S = 2.0


class Unavailable(Exception):
    """Nothing came: "down" (known before), "deadline", "unreachable", "denied" (password, rights) or "error" (what
    Valkey said is in the message)."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Script:
    """A Lua script, called by its hash; the text is sent only when Valkey does not know it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


class Client(Protocol):
    """Of redis-py, as far as it is used."""

    async def execute_command(self, *args: Any) -> Any: ...

    async def aclose(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outside:
    """What comes from outside. clock: seconds, monotonic. connect: makes a client for an address and a time-out in
    seconds; None = make_client. A simulation brings its own."""

    clock: Callable[[], float] = time.monotonic
    rng: random.Random = field(default_factory=random.Random)
    connect: Callable[[Address, float], Client] | None = None


class Valkey:
    """url: see address.py (ValueError). timeout_s: of any call, connecting included; a call's deadline may be less.
    on_lost: called when it goes down. connect: as in Outside."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        on_lost: Callable[[], None] | None = None,
        connect: Callable[[Address, float], Client] | None = None,
    ) -> None:
        self.address = parse_address(url)
        self.last_error = ""
        self.round_trip_s = 0.0
        self._timeout_s = timeout_s
        self._clock = clock
        self._rng = rng or random.Random()
        self._on_lost = on_lost
        self._connect = connect
        self._client: Client | None = None
        self._up = False
        self._failures = 0  # in a row
        self._probes = 0  # that failed, in a row

    @property
    def up(self) -> bool:
        return self._up

    async def call(
        self, script: Script, keys: Sequence[str | bytes], args: Sequence[Any], *, deadline_s: float = TIMEOUT_S
    ) -> list[Any]:
        """What the script returns. Unavailable otherwise, by the deadline at the latest."""
        if not self._up:
            raise Unavailable("down", self.last_error)
        try:
            answer = await self._call(script, keys, args, min(deadline_s, self._timeout_s))
        except Unavailable as error:
            if error.reason != "deadline" or deadline_s >= TELLING_S:
                self._failed(error)
            raise
        self._failures = 0
        return answer

    async def probe(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Any]) -> list[Any]:
        """A call that is tried although Valkey is down, and brings it up when it succeeds."""
        began = self._clock()
        try:
            answer = await self._call(script, keys, args, self._timeout_s)
        except Unavailable as error:
            self._probes += 1
            self._failed(error)
            raise
        self.round_trip_s = self._clock() - began
        self._failures = self._probes = 0
        self._up = True
        return answer

    def backoff_s(self) -> float:
        """How long to wait before the next probe after one that failed; between half and all of what doubles."""
        most = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(max(0, self._probes - 1), 10))
        return most * self._rng.uniform(0.5, 1.0)

    async def close(self) -> None:
        """Ends its connections. Closing twice is harmless."""
        self._up = False
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _failed(self, error: Unavailable) -> None:
        self.last_error = str(error)
        self._failures += 1
        if self._up and (error.reason == "unreachable" or self._failures >= TRIES):
            self._up = False
            if self._on_lost is not None:
                self._on_lost()

    async def _call(
        self, script: Script, keys: Sequence[str | bytes], args: Sequence[Any], deadline_s: float
    ) -> list[Any]:
        # A call that is cancelled half-way closes its connection (redis-py does), so that no answer meets a later one.
        try:
            async with asyncio.timeout(deadline_s):
                answer = await self._evaluate(script, keys, args)
        except (TimeoutError, RedisTimeoutError):
            raise Unavailable("deadline", f"{self.address.text} did not answer in {deadline_s * 1e3:.0f} ms") from None
        except (AuthenticationError, NoPermissionError) as error:
            raise Unavailable("denied", f"{self.address.text} refuses: {error}") from None
        except (RedisConnectionError, OSError) as error:
            raise Unavailable("unreachable", f"{self.address.text} cannot be reached: {error}") from None
        except ResponseError as error:
            denied = str(error).startswith(("WRONGPASS", "NOAUTH", "NOPERM"))
            raise Unavailable("denied" if denied else "error", f"{self.address.text} says: {error}") from None
        except Exception as error:  # noqa: BLE001 - the client's own trouble must not become a request's
            raise Unavailable("error", f"{self.address.text}: {type(error).__name__}: {error}") from None
        if not isinstance(answer, list):
            raise Unavailable("error", f"{self.address.text} answered {type(answer).__name__} instead of a list")
        return cast("list[Any]", answer)

    async def _evaluate(self, script: Script, keys: Sequence[str | bytes], args: Sequence[Any]) -> object:
        if self._client is None:
            self._client = (self._connect or make_client)(self.address, self._timeout_s)
        try:
            return await self._client.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await self._client.execute_command("EVAL", script.text, len(keys), *keys, *args)


class Followed:
    """The master that sentinels name, and its connections to both; redis-py leaves those to the sentinels open."""

    def __init__(self, finder: Sentinel, address: Address) -> None:
        self.finder = finder
        self.master = cast("Redis", cast("Any", finder).master_for(address.service, db=address.db))

    async def execute_command(self, *args: Any) -> Any:
        return await cast("Client", self.master).execute_command(*args)

    async def aclose(self) -> None:
        for each in (self.master, *cast("list[Redis]", cast("Any", self.finder).sentinels)):
            await each.aclose()


def make_client(address: Address, timeout_s: float) -> Client:
    """A redis-py client that never retries by itself: whoever calls knows better what a late answer is worth.

    Nor has it a time-out of its own for calls: redis-py would use asyncio.wait_for, which on Python 3.11 loses a
    cancellation that comes as it ends, and the deadline with it.
    """
    common: dict[str, Any] = {
        "username": address.username,
        "password": address.password,
        "socket_timeout": None,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
    }
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]
        made = RedisCluster(
            startup_nodes=nodes, ssl=address.tls, max_connections=CONNECTIONS, **address.options, **common
        )
    elif address.kind == "sentinel":
        tls: dict[str, Any] = {"ssl": True, **address.options} if address.tls else {}
        own: dict[str, Any] = {
            **address.sentinel,
            **tls,
            "socket_timeout": None,
            "socket_connect_timeout": timeout_s,
            "retry": Retry(NoBackoff(), 0),
        }
        finder = Sentinel(list(address.hosts), sentinel_kwargs=own, **common, **tls)
        made = Followed(finder, address)
    else:
        host, port = address.hosts[0]
        # Blocking: beyond these connections a call waits its turn, within its deadline.
        pool = BlockingConnectionPool(
            max_connections=CONNECTIONS,
            timeout=timeout_s,
            connection_class=SSLConnection if address.tls else Connection,
            host=host,
            port=port,
            db=address.db,
            **address.options,
            **common,
        )
        made = Redis.from_pool(pool)
    return cast("Client", made)
