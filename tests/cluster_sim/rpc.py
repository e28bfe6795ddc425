"""gRPC on the simulated network: a channel for the product's stubs, a server for its servicers, in messages' bytes.

A call's deadline ends it on both sides, each by its own clock; a call whose reader has gone is cancelled once the
server hears of it; a stream stalls when nobody reads. What grpc.aio does beyond that is not here.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from .net import REFUSED_S, Broken, Net, Pipe
from .virtual import LIFE, Life

KEEPALIVE_S = 8.0  # a peer that says nothing for so long is gone


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


class Server:
    """What add_..._to_server() registers with. host: its name on the network; life: whose tasks its calls are."""

    def __init__(self, net: Net, host: str, life: Life) -> None:
        self.net, self.host, self.life = net, host, life
        self._handlers: list[Any] = []

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        pass  # the same again

    def find(self, method: str) -> Any:
        details = type("Details", (), {"method": method, "invocation_metadata": ()})()
        return next((found for each in self._handlers if (found := each.service(details)) is not None), None)


class Context:
    """What a servicer's method gets."""

    def __init__(self, write: Callable[[Any], Any], peer: str, until: float) -> None:
        self.write, self._peer, self._until = write, peer, until

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    def auth_context(self) -> dict[str, Any]:
        return {}

    def time_remaining(self) -> float:
        return max(0.0, self._until - asyncio.get_running_loop().time())

    async def abort(self, code: grpc.StatusCode, details: str = "", *_: Any) -> None:
        raise _error(code, details)

    async def send_initial_metadata(self, *_: Any) -> None:
        pass

    def set_trailing_metadata(self, *_: Any) -> None:
        pass


class Call:
    """A call with one request, and an answer in one part or many."""

    def __init__(self, channel: "Channel", method: str, data: bytes, timeout_s: float | None, parse: Any) -> None:
        loop = asyncio.get_running_loop()
        self._channel, self._parse = channel, parse
        self._until = loop.time() + (KEEPALIVE_S if timeout_s is None else timeout_s)
        self._parts: Pipe | None = None
        self._opened = loop.create_future()
        self._opening = loop.create_task(self._open(method, data))
        self._server_task: asyncio.Task[Any] | None = None
        self._over = False
        channel.calls[self] = None
        channel.life.on_end[self._died] = None

    async def read(self) -> Any:
        try:
            async with asyncio.timeout_at(self._until):
                parts: Pipe = await asyncio.shield(self._opened)
                data = await parts.get()
        except TimeoutError:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded") from None
        except Broken as error:
            raise _error(grpc.StatusCode.UNAVAILABLE, str(error)) from None
        if data is None:
            return grpc.aio.EOF
        try:
            return self._parse(data)
        except Exception:  # noqa: BLE001
            raise _error(grpc.StatusCode.INTERNAL, "the answer cannot be parsed") from None

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Any]:
        try:
            while (part := await self.read()) is not grpc.aio.EOF:
                yield part
        finally:
            self.cancel()

    def __await__(self) -> Any:
        return self._single().__await__()

    async def _single(self) -> Any:
        try:
            part = await self.read()
            if part is grpc.aio.EOF:
                raise _error(grpc.StatusCode.INTERNAL, "no answer")
            return part
        finally:
            self.cancel()

    def cancel(self) -> bool:
        """The server hears of it when the message arrives, or at the deadline."""
        if self._over:
            return False
        self._over = True
        self._channel.calls.pop(self, None)
        self._channel.life.on_end.pop(self._died, None)
        self._opening.cancel()
        if self._parts is not None:
            self._parts.close()
        if self._server_task is not None and not self._server_task.done():
            self._channel.net.spawn(self._tell(self._server_task))
        return True

    def _died(self) -> None:
        if self._server_task is not None and self._channel.host not in self._channel.net.dark:
            self._channel.net.spawn(self._tell(self._server_task))

    async def _tell(self, task: "asyncio.Task[Any]") -> None:
        with contextlib.suppress(Broken):
            await self._channel.net.cross(self._channel.host, self._channel.peer)
        task.cancel()

    async def _open(self, method: str, data: bytes) -> None:
        net, me, address = self._channel.net, self._channel.host, self._channel.address
        try:
            server = await self._channel.reach()
            await net.cross(me, server.host, len(data))
            if net.listening.get(address) is not server or not server.life.alive:
                raise Broken("reset")
        except Broken as error:
            self._opened.set_exception(error)
            self._opened.exception()  # seen, whether anybody reads or not
            return
        data = net.damaged(data)
        for echo in [False] + [True] * (net.rng.random() < net.weather.doubled):
            parts = Pipe(net, server.life, server.host, me)
            task = server.life.spawn(self._serve(server, method, data, parts))
            if echo:  # a request that came twice: nobody reads the second answer
                net.note("double")
                asyncio.get_running_loop().call_later(net.rng.uniform(0.0, 1.0), task.cancel)
            else:
                self._server_task = task
                self._parts = parts
                if not self._opened.done():
                    self._opened.set_result(parts)

    async def _serve(self, server: Server, method: str, data: bytes, parts: Pipe) -> None:
        handler = server.find(method)
        error: Exception | None = None
        try:
            async with asyncio.timeout_at(self._until):
                if handler is None:
                    raise _error(grpc.StatusCode.UNIMPLEMENTED, method)
                try:
                    request = handler.request_deserializer(data)
                except Exception:  # noqa: BLE001
                    raise _error(grpc.StatusCode.INTERNAL, "the request cannot be parsed") from None

                async def write(part: Any) -> None:
                    await parts.put(handler.response_serializer(part))

                context = Context(write, self._channel.host, self._until)
                await _answer(handler, request, context, write)
        except TimeoutError:
            error = _error(grpc.StatusCode.DEADLINE_EXCEEDED, "deadline exceeded")
        except grpc.aio.AioRpcError as said:
            error = said
        except Exception as said:  # noqa: BLE001 - as grpc.aio: a fault of the servicer is the caller's UNKNOWN
            server.net.note(f"fault {type(said).__name__} {said}")
            error = _error(grpc.StatusCode.UNKNOWN, f"{type(said).__name__}: {said}")
        parts.finish(error)


async def _answer(handler: Any, request: Any, context: Context, write: Callable[[Any], Any]) -> None:
    method = handler.unary_stream or handler.unary_unary
    made = method(request, context)
    if inspect.isasyncgen(made):
        async with contextlib.aclosing(made) as parts:
            async for part in parts:
                await write(part)
        return
    result = await made
    if handler.unary_unary is not None:
        await write(result)


class Channel:
    """A grpc.aio.Channel to the server at an address, for one life of one host."""

    def __init__(self, net: Net, host: str, address: str) -> None:
        self.net, self.host, self.address = net, host, address
        self.peer = address
        self.calls: dict[Call, None] = {}
        self.life = LIFE.get() or Life(host)
        self._closed = False

    async def reach(self) -> Server:
        """Who listens there. Broken: nobody."""
        found = self.net.listening.get(self.address)
        if found is None:
            await asyncio.sleep(REFUSED_S)
            raise Broken("refused")
        self.peer = found.host
        return found

    def unary_unary(self, method: str, request_serializer: Any = None, response_deserializer: Any = None, **_: Any):
        def make(request: Any, timeout: float | None = None, **_: Any) -> Call:
            if self._closed:
                raise grpc.aio.UsageError("Channel is closed.")
            return Call(self, method, request_serializer(request), timeout, response_deserializer)

        return make

    unary_stream = unary_unary

    def stream_stream(self, *_: Any, **__: Any):
        def refuse(*_: Any, **__: Any) -> None:
            raise NotImplementedError("streams of requests are not simulated")

        return refuse

    stream_unary = stream_stream

    async def close(self, grace: float | None = None) -> None:
        self._closed = True
        for call in list(self.calls):
            call.cancel()
