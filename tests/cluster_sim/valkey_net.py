"""Valkey on the simulated network: its model behind connections that are cut, late, refused, or answered too late."""

import asyncio
import random
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from .lua import ReplyError
from .net import REFUSED_S, Broken, Net
from .valkey_model import ValkeyModel

HOST = "valkey"
WALL_S = 1.7e9  # what its clock says when the simulation begins


class ValkeyHost:
    """One Valkey; down: nobody listens; hung: it takes what comes and answers once it goes on."""

    def __init__(self, net: Net, rng: random.Random) -> None:
        self.net = net
        self.model = ValkeyModel(lambda: WALL_S + asyncio.get_running_loop().time(), rng)
        self.down = False
        self._running = asyncio.Event()
        self._running.set()

    def kill(self) -> None:
        self.down = True

    def start(self, *, keep: bool) -> None:
        self.down = False
        self.model.restart(keep=keep)

    def hang(self, hung: bool) -> None:
        self._running.clear() if hung else self._running.set()

    def connect(self, host: str) -> "ValkeyClient":
        return ValkeyClient(self, host)

    async def answer(self, host: str, parts: tuple[Any, ...]) -> Any:
        """What comes of a command; it is executed even if whoever asked is gone by then."""
        if self.down and host not in self.net.dark:
            await asyncio.sleep(REFUSED_S)
            raise RedisConnectionError("refused")
        run = self.model.run_id
        await self.net.cross(host, HOST)
        await self._running.wait()
        if self.down or run != self.model.run_id:
            raise RedisConnectionError("reset")
        try:
            answer = self.model.execute(*parts)
        except ReplyError as error:
            answer = error
        await self.net.cross(HOST, host)
        if self.down or run != self.model.run_id:
            raise RedisConnectionError("reset")
        if isinstance(answer, ReplyError):
            raise (NoScriptError if str(answer).startswith("NOSCRIPT") else ResponseError)(str(answer))
        return answer


class ValkeyClient:
    """redis-py's, as far as the product uses it."""

    def __init__(self, server: ValkeyHost, host: str) -> None:
        self._server, self._host = server, host

    async def execute_command(self, *parts: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self._server.net.spawn(self._run(parts, future))
        return await future

    async def aclose(self) -> None:
        pass

    async def _run(self, parts: tuple[Any, ...], future: "asyncio.Future[Any]") -> None:
        try:
            answer, error = await self._server.answer(self._host, parts), None
        except Broken:
            answer, error = None, RedisConnectionError("reset")
        except (RedisConnectionError, ResponseError) as said:
            answer, error = None, said
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)
