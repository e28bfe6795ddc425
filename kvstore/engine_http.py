"""EngineHttp: an OpenAI-compatible engine asked from the command line, by the standard library alone: blocking calls,
JSON in and out, no proxies, no redirects. EngineError says what went wrong in one line."""

import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from .errors import KvterraceError

MAX_ANSWER_BYTES = 64 << 20
SHOWN_CHARS = 300


class EngineError(KvterraceError):
    """No answer, or none that is of use. status: of HTTP, 0 = there was none."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class EngineAccess:
    """key: shown as a bearer token, "" = none. context: of TLS, None = whom the system believes."""

    key: str = ""
    context: ssl.SSLContext | None = None


class EngineHttp:
    """url: http(s)://HOST:PORT, with or without a path such as /v1 behind it. ValueError when it is none. timeout_s: of
    one call, connecting included."""

    def __init__(self, url: str, access: EngineAccess | None = None, *, timeout_s: float = 120.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is not the address of an engine, such as http://127.0.0.1:8000")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port
        self._access = access or EngineAccess()
        self._timeout_s = timeout_s

    def __str__(self) -> str:
        return self.url + self._root

    def get(self, path: str) -> dict[str, Any]:
        """The JSON object at `path`, such as /v1/models. EngineError."""
        return self._call("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        """The answer to a JSON body. EngineError, which has the engine's own words."""
        return self._call("POST", path, body)

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> dict[str, Any]:
        connection = self._connect()
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self._access.key:
            headers["Authorization"] = f"Bearer {self._access.key}"
        try:
            connection.request(method, self._root + path, json.dumps(body) if body is not None else None, headers)
            with connection.getresponse() as answer:  # it has the socket to itself when the engine hangs up behind it
                data = answer.read(MAX_ANSWER_BYTES + 1)
        except TimeoutError:
            raise EngineError(f"{self} did not answer {path} within {self._timeout_s:g} s") from None
        except ssl.SSLError as error:
            raise EngineError(f"no TLS connection to {self}: {error.reason or error}; see --engine-ca") from None
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"no engine answers at {self}: {_why(error)}") from None
        finally:
            connection.close()
        return self._understood(path, answer.status, data)

    def _connect(self) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        context = self._access.context or ssl.create_default_context()
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)

    def _understood(self, path: str, status: int, data: bytes) -> dict[str, Any]:
        if len(data) > MAX_ANSWER_BYTES:
            raise EngineError(f"{self}{path} answered more than {MAX_ANSWER_BYTES} bytes", status)
        try:
            found: object = json.loads(data) if data else {}
        except ValueError:
            found = None
        if status != 200:
            raise EngineError(f"{self}{path} answered {status}: {_words(found, data)}", status)
        if not isinstance(found, dict):
            raise EngineError(f"{self}{path} answered no JSON object: {_words(None, data)}", status)
        return cast("dict[str, Any]", found)


def _why(error: OSError | http.client.HTTPException) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _words(found: object, data: bytes) -> str:
    """What an error answer says, whatever its shape."""
    if isinstance(found, dict):
        error = cast("dict[str, object]", found).get("error", cast("dict[str, object]", found).get("message"))
        if isinstance(error, dict):
            error = cast("dict[str, object]", error).get("message")
        if error:
            return str(error)[:SHOWN_CHARS]
    return data[:SHOWN_CHARS].decode("utf-8", "replace") or "nothing"
