"""POST /score: the scores as JSON, for routers that speak HTTP."""

from typing import Annotated

import numpy as np
from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..proto import kv_pb2 as pb
from .commands.score import fingerprint_of
from .events.sight import Sight
from .scores import MAX_TOKENS_BYTES, BadScore, Scores, as_json
from .security.http import CALLER
from .security.identity import LOCAL

MAX_BODY_BYTES = 16 << 20
TokenId = Annotated[int, Field(ge=-(2**31), lt=2**31)]


class Asked(BaseModel):
    """The body. namespace: fingerprint in hex, or label; tokens: ids; local: of this node alone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    namespace: str = Field(max_length=256)
    tokens: list[TokenId] = Field(max_length=MAX_TOKENS_BYTES // 4)
    local: bool = False
    deadline_s: float = Field(default=0.0, ge=0.0)


def score_router(scores: Scores, sight: Sight) -> APIRouter:
    """For the operators' app, whose edge asks who calls. sight: what a caller may be told of."""
    router = APIRouter()

    @router.post("/score")
    async def score(request: Request) -> dict[str, object]:  # pyright: ignore[reportUnusedFunction]
        asked = _parse(await _body(request))
        wanted = pb.ScoreRequest(
            tokens=np.array(asked.tokens, dtype="<i4").tobytes(), local=asked.local, deadline_s=asked.deadline_s
        )
        wanted.fingerprint = fingerprint_of(asked.namespace)
        wanted.namespace = "" if wanted.fingerprint else asked.namespace
        try:
            return as_json(await scores.score(wanted, sight(request.scope.get(CALLER, LOCAL))))
        except BadScore as error:
            raise HTTPException(400, str(error)) from None

    return router


async def _body(request: Request) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, f"the body has more than {MAX_BODY_BYTES} bytes")
        parts.append(part)
    return b"".join(parts)


def _parse(body: bytes) -> Asked:
    try:
        return Asked.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(each) for each in first["loc"][:2]) or "body"
        raise HTTPException(400, f"{place}: {first['msg']}") from None
