"""ApiError: every answer that is not a success, in OpenAI's shape, and the few ways to make one."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Seconds a client should wait after its request timed out in the queue: the queue was full of slower ones.
RETRY_AFTER_TIMEOUT_S = 5.0
RETRY_AFTER_LOADING_S = 2.0


@dataclass
class ApiError(Exception):
    """An error response. `param` names the field of the request that is at fault, `code` is for programs."""

    status: int
    message: str
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """OpenAI's `type`."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"

    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class ClientGone(Exception):
    """The client closed its connection before its answer was complete; there is nobody to tell."""


def unauthorized(*, shown: bool) -> ApiError:
    """401. shown: a key came with the request, and it is nobody's."""
    headers = {"WWW-Authenticate": "Bearer"}
    if shown:
        return ApiError(401, "Incorrect API key provided.", code="invalid_api_key", headers=headers)
    message = "You didn't provide an API key. Send it in the header Authorization: Bearer YOUR_KEY."
    return ApiError(401, message, code="missing_api_key", headers=headers)


def forbidden() -> ApiError:
    return ApiError(403, "This API key or certificate may not make this request.", code="forbidden")


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    return ApiError(400, message, param, code)


def too_long(tokens: int, limit: int, param: str) -> ApiError:
    message = f"This model takes prompts of at most {limit} tokens; yours has {tokens}. Please shorten it."
    return ApiError(400, message, param, "context_length_exceeded")


def no_such_model(name: str) -> ApiError:
    return ApiError(404, f"The model {name!r} does not exist.", "model", "model_not_found")


def throttled(message: str, retry_after_s: float, code: str) -> ApiError:
    """429. Retry-After is whole seconds, at least one."""
    return ApiError(429, message, None, code, _retry_after(retry_after_s))


def unavailable(message: str, code: str) -> ApiError:
    return ApiError(503, message, None, code, _retry_after(RETRY_AFTER_LOADING_S))


def engine_failed(message: str) -> ApiError:
    return ApiError(500, message, None, "engine_error")


def _retry_after(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}
