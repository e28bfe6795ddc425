"""The bodies of the two generating calls, checked: ChatCall and CompletionCall.

Whatever would change the output is either obeyed or refused, never ignored: a name nobody knows is refused, so is a
known one that the engine cannot do, unless its value asks for nothing ("tools": []). null always means "not given".
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_core import PydanticCustomError

from ..request import MAX_PRIORITY, MAX_TTL_S, Priority, SamplingParams, TokenRetention
from .errors import ApiError, bad_request

MAX_CHOICES = 128  # of one call: prompts times n
MAX_STOPS = 16
MAX_STOP_CHARS = 256  # each token's text is compared with every beginning of every stop string
MAX_STOP_TOKENS = 64
MAX_TOP_LOGPROBS = 20
MAX_RETENTIONS = 64
DEFAULT_COMPLETION_TOKENS = 16  # OpenAI's; a chat without max_tokens may use all that the model has

#: Accepted and without effect, as they do not touch the output.
HARMLESS = frozenset(
    {"metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_retention", "safety_identifier"}
    | {"service_tier", "store", "user"}
)

#: Known to OpenAI's API, not done here: the values that ask for nothing. null is always one of them.
NEUTRAL_CHAT: Mapping[str, tuple[object, ...]] = {
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "response_format": ({"type": "text"},),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
NEUTRAL_COMPLETION: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "logit_bias": ({},),
    "suffix": ("",),
}

Stop = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
TokenCount = Annotated[int, Field(ge=1, le=2**31 - 1)]
_STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(BaseModel):
    model_config = _STRICT

    include_usage: bool = False
    include_obfuscation: bool = False  # OpenAI's padding against traffic analysis; chunks here are never padded


class RetentionPart(BaseModel):
    """Tokens of the prompt and how long their KV is worth keeping: see TokenRetention."""

    model_config = _STRICT

    start: int = Field(0, ge=0, le=2**31 - 1)
    end: TokenCount | None = None
    priority: int = Field(50, ge=0, le=MAX_PRIORITY)
    ttl_s: float = Field(0.0, ge=0, le=MAX_TTL_S)
    pin: bool = False

    @field_validator("end")
    @classmethod
    def _behind_the_start(cls, value: int | None, info: Any) -> int | None:
        if value is not None and value <= info.data.get("start", 0):
            raise PydanticCustomError("end", "must be above start")
        return value


class CacheOptions(BaseModel):
    """The `kvterrace` field: what the cache is told about this prompt."""

    model_config = _STRICT

    retention: list[RetentionPart] = Field(default=[], max_length=MAX_RETENTIONS)
    cache: bool = True  # false: nothing is reused and nothing is kept


class Call(BaseModel):
    """What both calls have in common."""

    model_config = _STRICT

    model: str
    max_tokens: TokenCount | None = None
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, le=2**31 - 1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, ge=0.01, le=100)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: list[Stop] = Field([], max_length=MAX_STOPS)
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = Field([], max_length=MAX_STOP_TOKENS)
    ignore_eos: bool = False
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    stream: bool = False
    stream_options: StreamOptions | None = None
    priority: Priority = "interactive"
    kvterrace: CacheOptions = CacheOptions()

    @field_validator("stop", mode="before")
    @classmethod
    def _one_stop(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @field_validator("stream_options")
    @classmethod
    def _only_when_streaming(cls, value: StreamOptions | None, info: Any) -> StreamOptions | None:
        if not info.data.get("stream", True):
            raise PydanticCustomError("stream_options", "only allowed when stream is true")
        return value

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def retention(self) -> tuple[TokenRetention, ...]:
        return tuple(TokenRetention(**part.model_dump()) for part in self.kvterrace.retention)

    def sampling(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=max(self.top_k, 0),  # -1 is what other servers call "all"
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            max_tokens=max_tokens,
            stop=tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            n=self.n,
        )


class ChatCall(Call):
    """POST /v1/chat/completions."""

    messages: list[Any] = Field(min_length=1)
    max_completion_tokens: TokenCount | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: Any) -> int | None:
        if value is not None and not info.data.get("logprobs", True):
            raise PydanticCustomError("top_logprobs", "only allowed when logprobs is true")
        return value

    @field_validator("max_completion_tokens")
    @classmethod
    def _one_limit(cls, value: int | None, info: Any) -> int | None:
        if info.data.get("max_tokens") not in (None, value):
            raise PydanticCustomError("max_completion_tokens", "differs from max_tokens; give one of them")
        return value

    def params(self) -> SamplingParams:
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling(max_tokens=self.max_completion_tokens or self.max_tokens, logprobs=logprobs)


class CompletionCall(Call):
    """POST /v1/completions."""

    prompt: Any
    logprobs: int | None = Field(None, ge=0, le=MAX_TOP_LOGPROBS)

    def params(self) -> SamplingParams:
        max_tokens = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        return self.sampling(max_tokens=max_tokens, logprobs=self.logprobs)


CallT = TypeVar("CallT", bound=Call)


def parse_chat(body: object) -> ChatCall:
    """ApiError 400 names the field at fault."""
    return _parse(ChatCall, body, NEUTRAL_CHAT)


def parse_completion(body: object) -> CompletionCall:
    """ApiError 400 names the field at fault."""
    if isinstance(body, dict) and body.get("best_of") is not None and body.get("best_of") == body.get("n"):
        body = {**body, "best_of": 1}  # as many candidates as choices: nothing to choose among
    return _parse(CompletionCall, body, NEUTRAL_COMPLETION)


def _parse(kind: type[CallT], body: object, neutral: Mapping[str, tuple[object, ...]]) -> CallT:
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.")
    given: dict[str, object] = {}
    for name, value in body.items():
        if name in neutral:
            if value is not None and not any(_same(value, each) for each in neutral[name]):
                raise bad_request(f"{name} is not supported by this server.", name, "unsupported_parameter")
        elif name in HARMLESS:
            continue
        elif name not in kind.model_fields:
            raise bad_request(f"Unknown parameter: {name!r}.", str(name), "unknown_parameter")
        elif value is not None:
            given[name] = value
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise _explain(error, given) from None


def _same(left: object, right: object) -> bool:
    return left == right and type(left) is type(right)  # False is no 0


def _explain(error: ValidationError, given: Mapping[str, object]) -> ApiError:
    """The first problem in words, with its path: stop[3], stream_options.include_usage."""
    first = error.errors(include_url=False)[0]
    path = ""
    place = first["loc"]
    if isinstance(given.get(str(place[0])), str):  # one stop string, made a list of one
        place = place[:1]
    for part in place:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    if first["type"] == "missing":
        return bad_request(f"{path} is required.", path, "missing_required_parameter")
    if first["type"] == "extra_forbidden":
        return bad_request(f"Unknown parameter: {path!r}.", path, "unknown_parameter")
    reason = first["msg"][:1].lower() + first["msg"][1:]
    return bad_request(f"{path}: {reason}.", path, "invalid_value")
