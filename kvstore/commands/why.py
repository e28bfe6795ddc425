"""`kvterrace why`: why a request, or a prompt, is not reused further."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.text import Text

from ...proto import kv_pb2 as pb
from ...radix import TOKEN_BYTES, pack_tokens, unpack_tokens
from ..around import differing
from ..engine_http import EngineError, EngineHttp
from ..errors import ConfigError
from ..service.admin import fetch_explanation, fetch_receipts
from ..service.channel import Address
from ..status_view import plain
from ..text import Tokenizer, load_tokenizer
from ..words import miss_sentences, receipt_sentences, said, tokens_by_tier
from .common import (
    CALL_TIMEOUT_S,
    AddressOption,
    JsonOption,
    NamespaceOption,
    TokensOption,
    address_of,
    ask,
    fail,
    fingerprint_of,
    only_namespace,
    packed_tokens,
    print_json,
)
from .engines import CaOption, KeyOption, engines_of

AROUND_TOKENS = 24
ENGINE_TIMEOUT_S = 30.0
_NOT_ASKED = "Other nodes and the remote store were not asked; they may have what is missing here."
Answer = tuple[Mapping[str, object], Iterator[str | Text]]


def why(  # noqa: PLR0913, PLR0917  # a flag is a parameter
    request_id: Annotated[
        str | None, typer.Argument(help="Of a request that was served: the id of its answer.")
    ] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="File of a prompt: text, or JSON with messages. - reads stdin.")
    ] = None,
    tokens: TokensOption = None,
    engine: Annotated[str | None, typer.Option("--engine", metavar="URL", help="Ask this engine.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="tokenizer.json for --prompt (text only), or to show --tokens as text.")
    ] = None,
    namespace: NamespaceOption = None,
    address: AddressOption = None,
    api_key_file: KeyOption = None,
    engine_ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say in words why a request was not reused further (REQUEST_ID), or what a prompt would hit now, where it breaks
    off what is cached, and what differs there (--prompt or --tokens)."""
    if (request_id is not None) + (prompt is not None) + (tokens is not None) != 1:
        fail("why", "say what to explain: a request's id, or --prompt FILE, or --tokens FILE", 2)
    asked = engines_of("why", [engine], api_key_file, engine_ca, ENGINE_TIMEOUT_S)[0] if engine else None
    to = address_of(address)
    if request_id is not None:
        answer = _of_engines_request(asked, request_id) if asked is not None else _of_request(to, request_id)
    elif asked is not None and prompt is not None:
        answer = _of_engines_prompt(asked, _read(prompt))
    else:
        source = Source(prompt, tokens, _tokenizer(tokenizer, needed=prompt is not None))
        answer = _of_prompt(to, namespace, source)
    said_json, lines = answer
    if as_json:
        print_json(said_json)
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in lines:
        console.print(line)


@dataclass(frozen=True, slots=True)
class Source:
    """Where the prompt's tokens come from."""

    prompt: Path | None
    tokens: Path | None
    tokenizer: Tokenizer | None

    def packed(self) -> bytes:
        if self.prompt is not None and self.tokenizer is not None:
            return pack_tokens(list(self.tokenizer.encode(_read(self.prompt))))
        return packed_tokens("why", self.tokens)

    def text(self, tokens: bytes) -> str:
        return self.tokenizer.decode(unpack_tokens(tokens).tolist()) if self.tokenizer is not None else ""


def _of_request(to: Address, request_id: str) -> Answer:
    asked = pb.ReceiptsRequest(request_id=request_id)
    found = ask("why", fetch_receipts(to, asked, timeout_s=CALL_TIMEOUT_S))
    if not found.receipts:
        fail("why", f"no receipt of {request_id!r}: only the last requests' are kept (--receipts of serve)", 2)
    receipts = list(found.receipts)[::-1]

    def lines() -> Iterator[str]:
        for each in receipts:
            if len(receipts) > 1:
                yield f"{each.request_id}:"
            where = each.label or each.fingerprint.hex()[:12]
            yield f"Request {each.request_id} by {each.client or 'an engine'}, {where}."
            yield from receipt_sentences(each)

    return {"receipts": plain(receipts)}, lines()


def _of_engines_request(engine: EngineHttp, request_id: str) -> Answer:
    found = _engine(lambda: engine.get(f"/admin/receipts/{request_id}"))
    receipt = pb.Receipt(
        request_id=str(found.get("request_id", request_id)),
        tokens={str(tier): int(count) for tier, count in found.get("tokens", {}).items()},
        queue_wait_s=found.get("queue_wait_s") or 0.0,
        cache_wait_s=found.get("cache_wait_s") or 0.0,
        ttft_s=found.get("ttft_s") or 0.0,
        miss=_miss(found.get("miss")),
    )
    if found.get("saved_s") is not None:
        receipt.saved_s = found["saved_s"]
    return found, iter(receipt_sentences(receipt))


def _of_engines_prompt(engine: EngineHttp, text: str) -> Answer:
    found = _engine(lambda: engine.post("/admin/why", _body(text)))
    reply = pb.ExplainReply(
        tokens={str(tier): int(count) for tier, count in found.get("tokens", {}).items()},
        miss=_miss(found.get("miss")),
        compute_s=found.get("compute_s") or 0.0,
        load_s=found.get("load_s") or 0.0,
    )
    part = cast("dict[str, Any] | None", found.get("break"))

    def lines() -> Iterator[str | Text]:
        yield from _sentences(reply, int(found.get("prompt_tokens", 0)))
        if part is not None:
            yield from _around(str(part.get("before", "")), str(part.get("yours", "")), str(part.get("cached", "")))

    return found, lines()


def _of_prompt(to: Address, namespace: str | None, source: Source) -> Answer:
    tokens = source.packed()
    space = fingerprint_of("why", to, namespace) or only_namespace("why", to)
    asked = pb.ExplainRequest(fingerprint=space, tokens=tokens)
    reply = ask("why", fetch_explanation(to, asked, timeout_s=CALL_TIMEOUT_S))
    at = reply.miss.token * TOKEN_BYTES
    width = AROUND_TOKENS * TOKEN_BYTES
    before, ours, cached = tokens[max(at - width, 0) : at], tokens[at : at + width], reply.miss.cached
    texts = [source.text(each) for each in (before, ours, cached)]
    parts = dict(zip(("before", "yours", "cached"), texts, strict=True)) if any(texts) else None
    broken = {"token": reply.miss.token, **(parts or {})} if reply.HasField("miss") else None

    def lines() -> Iterator[str | Text]:
        yield from _sentences(reply, len(tokens) // TOKEN_BYTES)
        if reply.HasField("miss"):
            yield from _around(*texts) if any(texts) else _around_tokens(before, ours, cached)
        yield _NOT_ASKED

    return {**plain(reply), "prompt_tokens": len(tokens) // TOKEN_BYTES, "break": broken}, lines()


def _sentences(reply: pb.ExplainReply, total: int) -> Iterator[str]:
    hit = sum(count for tier, count in reply.tokens.items() if tier != "computed")
    reply.tokens["computed"] = max(total - hit, 0)
    yield f"Of {total:,} prompt tokens, {tokens_by_tier(reply, would=True)}, if it were asked now."
    if reply.compute_s and hit:
        load = f", loading them {said(reply.load_s)}" if reply.load_s else ""
        yield f"Computing what would be reused takes {said(reply.compute_s)}{load}."
    if reply.HasField("miss"):
        yield from miss_sentences(reply.miss)


def _around(before: str, ours: str, cached: str) -> Iterator[Text]:
    mine, theirs = differing(ours, cached) if cached else (Text(ours), None)
    yield Text("before: ", style="bold") + Text(repr(before)[1:-1])
    yield Text("yours:  ", style="bold") + mine
    if theirs is not None:
        yield Text("cached: ", style="bold") + theirs


def _around_tokens(before: bytes, ours: bytes, cached: bytes) -> Iterator[Text]:
    mine, theirs = differing("", "", ours, cached)
    yield Text("before: ", style="bold") + Text(" ".join(map(str, unpack_tokens(before).tolist())))
    if cached:
        yield Text("yours:  ", style="bold") + mine
        yield Text("cached: ", style="bold") + theirs


def _miss(found: object) -> pb.Miss | None:
    """Of an engine's JSON."""
    if not isinstance(found, dict):
        return None
    said_miss = cast("dict[str, Any]", found)
    known = {
        name: said_miss[name]
        for name in ("reason", "token", "tier", "gone_s", "kept_s", "fields")
        if said_miss.get(name)
    }
    return pb.Miss(**known)


def _engine(call: Any) -> dict[str, Any]:
    try:
        return call()
    except EngineError as error:
        fail("why", str(error), 2 if error.status else 1)


def _body(text: str) -> dict[str, object]:
    """A chat where the file has one, else its text."""
    try:
        found: object = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict) and "messages" in found:
        return cast("dict[str, object]", found)
    return {"prompt": text}


def _read(path: Path) -> str:
    try:
        return sys.stdin.read() if str(path) == "-" else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        fail("why", f"--prompt: {path} cannot be read: {error}", 2)


def _tokenizer(path: Path | None, *, needed: bool) -> Tokenizer | None:
    if path is None and needed:
        fail("why", "--prompt needs --engine URL, or --tokenizer FILE to make tokens of it here", 2)
    try:
        return load_tokenizer(path, "--tokenizer") if path is not None else None
    except ConfigError as error:
        fail("why", str(error), 2)
