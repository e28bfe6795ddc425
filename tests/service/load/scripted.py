"""A chat endpoint that does exactly what it is told, with known timings. Runs on the test's own loop."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Usage = Callable[[dict[str, Any]], dict[str, Any] | None]


def words_of(body: dict[str, Any]) -> int:
    """Of all messages: what the endpoint takes for prompt tokens."""
    texts = [each["content"] for each in body["messages"]] if "messages" in body else [body["prompt"]]
    return sum(len(text.split()) for text in texts)


def plain_usage(body: dict[str, Any]) -> dict[str, Any]:
    return {"prompt_tokens": 10 + words_of(body), "completion_tokens": body["max_tokens"]}


@dataclass
class Script:
    """first_s, gap_s: until the first content, and between contents. refuse: (status, body) for a request, or None.
    cut_after, error_after: contents after which the connection breaks, or an error is sent. key: that must be shown.
    bodies: what was asked."""

    first_s: float = 0.02
    gap_s: float = 0.01
    usage: Usage = plain_usage
    refuse: Callable[[dict[str, Any]], tuple[int, Any] | None] = lambda body: None
    cut_after: int | None = None
    error_after: int | None = None
    crlf: bool = False
    key: str = ""
    models: list[dict[str, Any]] = field(default_factory=lambda: [{"id": "scripted", "max_model_len": 100_000}])
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    now: int = 0


class Server:
    def __init__(self, script: Script) -> None:
        self.script = script

    async def models(self, request: web.Request) -> web.Response:
        if not self._known(request):
            return web.json_response({"error": {"message": "no key"}}, status=401)
        return web.json_response({"object": "list", "data": self.script.models})

    async def answer(self, request: web.Request) -> web.StreamResponse:
        script, body = self.script, await request.json()
        script.bodies.append(body)
        refused = script.refuse(body)
        if refused is not None:
            return web.json_response(refused[1], status=refused[0])
        script.now += 1
        script.most_at_once = max(script.most_at_once, script.now)
        try:
            return await self._stream(request, body)
        finally:
            script.now -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        script, chat = self.script, "messages" in body
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if chat:  # names the role, without content: not the first token
            await self._send(response, {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(script.first_s)
        for number in range(body["max_tokens"]):
            if number == script.cut_after:
                request.transport.abort()
                return response
            if number == script.error_after:
                await self._send(response, {"error": {"message": "the engine failed", "type": "server_error"}})
                return response
            if number:
                await asyncio.sleep(script.gap_s)
            choice = {"index": 0, "delta": {"content": " word"}} if chat else {"index": 0, "text": " word"}
            await self._send(response, {"choices": [choice]})
        await self._send(response, {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        usage = script.usage(body) if body.get("stream_options", {}).get("include_usage") else None
        if usage is not None:
            await self._send(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        end = "\r\n" if self.script.crlf else "\n"
        await response.write(f": comment{end}data: {json.dumps(event)}{end}{end}".encode())

    def _known(self, request: web.Request) -> bool:
        return not self.script.key or request.headers.get("Authorization") == f"Bearer {self.script.key}"


@asynccontextmanager
async def serving(script: Script, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """The URL."""
    server, app = Server(script), web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/chat/completions", server.answer)
    app.router.add_post("/v1/completions", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    finally:
        await runner.cleanup()
