"""The routes that tell an operator what requests got, and what a prompt would get: receipts and POST /admin/why."""

import asyncio
from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request

from ...connector import Miss
from ..forecast import Forecast
from ..model import Tokenizer
from .admin import operators_only
from .backend import Backend
from .body import BodyBudget, read_json
from .errors import ApiError, bad_request, unavailable
from .params import parse_chat, parse_completion
from .prompts import prompt_ids
from .usage import miss_object, receipt_object

AROUND_TOKENS = 32  # of the prompt, that are shown before the break, and from it on
DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
MAX_QUESTIONS = 4  # that wait for the engine and the store at a time; more wait for these

Json = dict[str, Any]


def add_inspection_routes(app: FastAPI, backend: Backend, budget: BodyBudget) -> None:
    """Answered to those who may clear the cache."""
    questions = asyncio.Semaphore(MAX_QUESTIONS)

    @app.get("/admin/receipts")
    async def receipts(
        request: Request,
        limit: str = str(DEFAULT_LIMIT),
        reason: str = "",
        id: str = "",
    ) -> Json:
        operators_only(request)
        kept = backend.serving().engine.receipts
        found = kept.newest(_limit(limit), reason=reason, request_id=id)
        return {"receipts": [receipt_object(each) for each in found], "total": kept.total}

    @app.get("/admin/receipts/{request_id:path}")
    async def receipt(request: Request, request_id: str) -> Json:
        operators_only(request)
        found = backend.serving().engine.receipts.newest(1, request_id=request_id)
        if not found:
            raise ApiError(404, f"No receipt of {request_id[:100]!r} is kept.", "id", "no_such_receipt")
        return receipt_object(found[0])

    @app.post("/admin/why")
    async def why(request: Request) -> Json:
        operators_only(request)
        with budget.share() as share:
            body = await read_json(request, share)
            async with questions:
                return await asyncio.to_thread(_why, backend, body)


def _limit(text: str) -> int:
    """ApiError 400, in the shape of every other answer."""
    if not text.isdecimal() or not 1 <= int(text[:9]) <= MAX_LIMIT:
        raise bad_request(f"limit must be a number from 1 to {MAX_LIMIT}.", "limit", "invalid_value")
    return int(text)


def _why(backend: Backend, body: object) -> Json:
    """Slow: tokens, the engine's thread, the store."""
    serving = backend.serving()
    if isinstance(body, dict) and body.get("model") is None:
        body = {**body, "model": backend.model}
    chat = isinstance(body, dict) and "messages" in body
    call = parse_chat(body) if chat else parse_completion(body)
    backend.serving(call.model)
    tokenizer = serving.loaded.tokenizer
    prompts = prompt_ids(call, tokenizer, serving.engine.max_prompt_tokens)
    if len(prompts) != 1:
        raise bad_request("prompt: ask about one prompt at a time.", "prompt")
    try:
        found = serving.engine.why(prompts[0])
    except TimeoutError:
        raise unavailable("The engine was too busy to answer; try again.", "engine_busy") from None
    return {"model": backend.model, "prompt_tokens": len(prompts[0]), **_tell(found, prompts[0], tokenizer)}


def _tell(found: Forecast, ids: Sequence[int], tokenizer: Tokenizer) -> Json:
    return {
        "tokens": found.tokens,
        "miss": miss_object(found.miss),
        "break": _break(found.miss, ids, tokenizer) if found.miss is not None else None,
        "compute_s": round(found.compute_s, 6),
        "load_s": round(found.load_s, 6),
        "store": found.store,
    }


def _break(miss: Miss, ids: Sequence[int], tokenizer: Tokenizer) -> Json:
    """The text around the first token that is not cached: the prompt's, and what the closest cached one has there."""
    at = miss.token
    return {
        "token": at,
        "before": tokenizer.written(ids[max(0, at - AROUND_TOKENS) : at]),
        "yours": tokenizer.written(ids[at : at + AROUND_TOKENS]),
        "cached": tokenizer.written(unpacked(miss.cached)),
    }


def unpacked(tokens: bytes) -> list[int]:
    """Ids of packed tokens (little-endian int32)."""
    return [int.from_bytes(tokens[at : at + 4], "little", signed=True) for at in range(0, len(tokens) // 4 * 4, 4)]
