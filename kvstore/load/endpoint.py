"""Endpoint: one OpenAI-compatible server and how it is asked. Needs aiohttp, of the extra `load`."""

import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import aiohttp

from ..errors import KvterraceError
from .talks import Prompt

ApiKind = Literal["chat", "completions"]
PATHS: Mapping[ApiKind, str] = {"chat": "chat/completions", "completions": "completions"}
# Below the five seconds after which uvicorn closes idle connections: a request on one that is just being closed fails.
KEEP_ALIVE_S = 2.0
MAX_ERROR_BYTES = 16 << 10
MAX_MODELS_BYTES = 4 << 20


class NobodyAnswers(KvterraceError):
    """The endpoint cannot be reached, or is not ready."""


def base_url(given: str) -> str:
    """The URL that paths such as "models" go behind, without a final slash; of a bare host it is /v1. ValueError says
    what is wrong."""
    parts = urlsplit(given)
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port >= 0)
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"{given!r} is not a URL such as http://127.0.0.1:8000/v1")
    if parts.username or parts.query or parts.fragment:
        raise ValueError(f"{given!r}: only scheme, host, port and path belong here; a key is given by --api-key")
    path = parts.path.rstrip("/")
    for ending in PATHS.values():
        path = path.removesuffix(f"/{ending}")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


@dataclass(frozen=True, slots=True)
class Asking:
    """How requests are worded. model: "" = whatever the endpoint lists first. usage: ask for token counts at the end
    of the stream. ignore_eos: answers of exactly the length asked for, which vLLM, SGLang and kvterrace know."""

    kind: ApiKind = "chat"
    model: str = ""
    usage: bool = True
    ignore_eos: bool = False


class Endpoint:
    """http: whose base_url ends in a slash."""

    def __init__(self, http: aiohttp.ClientSession, url: str, asking: Asking) -> None:
        self.http = http
        self.url = url
        self.asking = asking
        self.max_model_len = 0  # 0 = not told

    def body(self, prompt: Prompt) -> dict[str, object]:
        """What is posted."""
        asking = self.asking
        body: dict[str, object] = {"model": asking.model, "max_tokens": prompt.max_tokens, "temperature": 0}
        if asking.kind == "chat":
            body["messages"] = [{"role": role, "content": text} for role, text in prompt.messages]
        else:
            body["prompt"] = "\n\n".join(text for _, text in prompt.messages)
        body["stream"] = True
        if asking.usage:
            body["stream_options"] = {"include_usage": True}
        if asking.ignore_eos:
            body["ignore_eos"] = True
        return body

    def without_usage(self) -> None:
        """From here on token counts are not asked for."""
        self.asking = replace(self.asking, usage=False)

    async def find_model(self) -> None:
        """Ask what is served. NobodyAnswers; KvterraceError for what the user can mend."""
        try:
            async with self.http.get(f"{self.url}/models") as response:
                status, text = response.status, await response.content.read(MAX_MODELS_BYTES)
                models = _models(text) if status == 200 else []
        except (aiohttp.ClientError, OSError) as error:
            raise NobodyAnswers(f"nobody answers at {self.url}: {reason_of(error)}") from None
        if status in (401, 403):
            raise KvterraceError(f"{self.url} answers {status}: give a key by --api-key or OPENAI_API_KEY")
        if status >= 500:
            raise NobodyAnswers(f"{self.url} is not ready: it answers {status}")
        names = [str(model.get("id", "")) for model in models]
        if self.asking.model and names and self.asking.model not in names:
            raise KvterraceError(f"--model: {self.asking.model!r} is not served at {self.url}; {_listed(names)}")
        if not self.asking.model and not names:
            raise KvterraceError(f"{self.url}/models lists no model: give --model, or another URL")
        self.asking = replace(self.asking, model=self.asking.model or names[0])
        length = next((model.get("max_model_len") for model in models if model.get("id") == self.asking.model), None)
        self.max_model_len = length if type(length) is int and length > 0 else 0


@asynccontextmanager
async def open_endpoint(
    url: str, asking: Asking, *, api_key: str = "", tls: ssl.SSLContext | None = None
) -> AsyncGenerator[Endpoint]:
    """Connections are made as needed, one for each request under way. Redirects are not followed: they would carry the
    key elsewhere."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, ssl=tls if tls is not None else True)
    timeout = aiohttp.ClientTimeout(total=None)  # each exchange has its own
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
        yield Endpoint(http, url, asking)


def reason_of(error: BaseException) -> str:
    """In a few words."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not believed; give its CA by --tls-ca"
    if isinstance(error, aiohttp.ClientConnectorError):
        return (error.os_error.strerror or str(error.os_error)).lower()
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection was closed before an answer"
    return str(error) or type(error).__name__


def _models(text: bytes) -> list[Mapping[str, Any]]:
    try:
        found: Any = json.loads(text)
        return [cast("dict[str, Any]", each) for each in found["data"] if isinstance(each, dict)]
    except (ValueError, KeyError, TypeError):
        return []


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"there is {shown}" if len(names) <= 5 else f"there are {shown} and {len(names) - 5} more"
