"""POST /tokenize and /detokenize, as vLLM has them: text to tokens and back, without generating anything."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Annotated, Any, Self, TypeVar

from fastapi import FastAPI, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from .backend import Backend
from .body import BodyBudget, read_json
from .errors import bad_request
from .prompts import check_messages

_STRICT = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)
MAX_TOKENS = 1 << 22

Json = dict[str, Any]


class TokenizeCall(BaseModel):
    """A prompt, or messages. add_special_tokens: default true of a prompt, false of messages (a template has it)."""

    model_config = _STRICT

    model: str | None = None
    prompt: str | None = None
    messages: list[Any] | None = Field(None, min_length=1)
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool = False

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise PydanticCustomError("prompt", "give either prompt or messages")
        return self


class DetokenizeCall(BaseModel):
    """tokens: special ones are written out."""

    model_config = _STRICT

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=2**31 - 1)]] = Field(max_length=MAX_TOKENS)


def add_token_routes(app: FastAPI, backend: Backend, budget: BodyBudget, threads: Executor) -> None:
    """For whoever may ask for completions; the work is done in the threads that tokenize long prompts."""

    async def answer(request: Request, work: Callable[[Backend, object], Json]) -> Json:
        with budget.share() as share:
            body = await read_json(request, share)
            return await asyncio.get_running_loop().run_in_executor(threads, work, backend, body)

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Json:
        return await answer(request, _tokenize)

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Json:
        return await answer(request, _detokenize)


def _tokenize(backend: Backend, body: object) -> Json:
    call = _parse(TokenizeCall, body)
    serving = backend.serving(call.model)
    tokenizer = serving.loaded.tokenizer
    special = call.messages is None if call.add_special_tokens is None else call.add_special_tokens
    if call.messages is not None:
        messages = check_messages(call.messages)
        try:
            text = tokenizer.apply_chat(messages, add_generation_prompt=call.add_generation_prompt)
        except ValueError as error:  # the model's template refuses the conversation
            raise bad_request(f"messages: {error}", "messages") from None
    else:
        text = call.prompt or ""
    ids = tokenizer.encode(text, add_special=special)
    return {
        "count": len(ids),
        "max_model_len": serving.engine.max_prompt_tokens + 1,
        "tokens": ids,
        "token_strs": [tokenizer.token_text(each) for each in ids] if call.return_token_strs else None,
    }


def _detokenize(backend: Backend, body: object) -> Json:
    call = _parse(DetokenizeCall, body)
    tokenizer = backend.serving(call.model).loaded.tokenizer
    beyond = next((token_id for token_id in call.tokens if token_id >= tokenizer.vocab_size), None)
    if beyond is not None:
        raise bad_request(f"tokens: {beyond} is not a token of this model (0 to {tokenizer.vocab_size - 1}).", "tokens")
    return {"prompt": tokenizer.written(call.tokens)}


CallT = TypeVar("CallT", bound=BaseModel)


def _parse(kind: type[CallT], body: object) -> CallT:
    """ApiError 400 names the first field that is wrong."""
    if not isinstance(body, dict):
        raise bad_request("The body must be a JSON object.")
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(str(part) for part in first["loc"]) or str(first["type"])
        raise bad_request(f"{path}: {first['msg']}.", path, "invalid_value") from None
