"""The shapes of answers, whole and in chunks: ChatAnswer and CompletionAnswer behind one Protocol."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..request import Output, TokenLogprob

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Naming:
    """What an answer says about itself and its maker. `fingerprint` changes with the weights.

    token_bytes: the bytes a token stands for. hidden: ids that end an output and are not part of it.
    """

    call_id: str
    model: str
    fingerprint: str
    token_bytes: Callable[[int], bytes]
    hidden: frozenset[int]


class Answer(Protocol):
    """One call's answer. Either chunks() for each choice's news in order, or whole() once."""

    @property
    def call_id(self) -> str: ...

    def chunks(self, choice: int, output: Output) -> list[Json]:
        """The events that tell one choice's news; none if there is nothing to show yet."""
        ...

    def usage_chunk(self, usage: Json) -> Json:
        """The last event, when it was asked for."""
        ...

    def whole(self, outputs: Sequence[Output], usage: Json) -> Json:
        """outputs: each choice's, joined."""
        ...


@dataclass
class _Head:
    """The fields in front of every object of one answer."""

    kind: str
    naming: Naming
    usage_in_chunks: bool
    fields: Json = field(init=False)

    def __post_init__(self) -> None:
        self.fields = {
            "id": self.naming.call_id,
            "object": self.kind,
            "created": int(time.time()),
            "model": self.naming.model,
            "system_fingerprint": self.naming.fingerprint,
        }

    def chunk(self, choices: list[Json], usage: Json | None = None) -> Json:
        chunk = {**self.fields, "choices": choices}
        if self.usage_in_chunks:
            chunk["usage"] = usage
        return chunk

    def shown(self, output: Output) -> Sequence[TokenLogprob] | None:
        """Log-probabilities of the tokens that are part of the text."""
        if output.logprobs is None:
            return None
        return [each for each in output.logprobs if each.token_id not in self.naming.hidden]


class ChatAnswer:
    """chat.completion, chat.completion.chunk."""

    def __init__(self, naming: Naming, *, stream: bool, with_usage: bool) -> None:
        kind = "chat.completion.chunk" if stream else "chat.completion"
        self._head = _Head(kind, naming, with_usage)
        self._begun: set[int] = set()
        self.call_id = naming.call_id

    def chunks(self, choice: int, output: Output) -> list[Json]:
        deltas: list[Json] = []
        logprobs = self._logprobs(output)
        if choice not in self._begun:
            self._begun.add(choice)
            deltas.append(_choice(choice, {"delta": {"role": "assistant", "content": ""}, "logprobs": None}))
        if output.text or (logprobs and logprobs["content"]):
            deltas.append(_choice(choice, {"delta": {"content": output.text}, "logprobs": logprobs}))
        if output.finish_reason is not None:
            deltas.append(_choice(choice, {"delta": {}, "logprobs": None}, output.finish_reason))
        return [self._head.chunk([delta]) for delta in deltas]

    def usage_chunk(self, usage: Json) -> Json:
        return self._head.chunk([], usage)

    def whole(self, outputs: Sequence[Output], usage: Json) -> Json:
        choices = []
        for number, output in enumerate(outputs):
            message = {"role": "assistant", "content": output.text, "refusal": None}
            news = {"message": message, "logprobs": self._logprobs(output)}
            choices.append(_choice(number, news, output.finish_reason))
        return {**self._head.fields, "choices": choices, "usage": usage}

    def _logprobs(self, output: Output) -> Json | None:
        shown = self._head.shown(output)
        if shown is None:
            return None
        content = []
        for each in shown:
            top = [self._token(token_id, logprob) for token_id, logprob in each.top]
            content.append({**self._token(each.token_id, each.logprob), "top_logprobs": top})
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> Json:
        raw = self._head.naming.token_bytes(token_id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(raw)}


class CompletionAnswer:
    """text_completion, whole and in chunks."""

    def __init__(self, naming: Naming, *, stream: bool, with_usage: bool) -> None:
        self._head = _Head("text_completion", naming, stream and with_usage)
        self._offsets: dict[int, int] = {}
        self.call_id = naming.call_id

    def chunks(self, choice: int, output: Output) -> list[Json]:
        logprobs = self._logprobs(choice, output)
        if not output.text and output.finish_reason is None and not (logprobs and logprobs["tokens"]):
            return []
        return [self._head.chunk([_choice(choice, {"text": output.text, "logprobs": logprobs}, output.finish_reason)])]

    def usage_chunk(self, usage: Json) -> Json:
        return self._head.chunk([], usage)

    def whole(self, outputs: Sequence[Output], usage: Json) -> Json:
        choices = [
            _choice(number, {"text": output.text, "logprobs": self._logprobs(number, output)}, output.finish_reason)
            for number, output in enumerate(outputs)
        ]
        return {**self._head.fields, "choices": choices, "usage": usage}

    def _logprobs(self, choice: int, output: Output) -> Json | None:
        """OpenAI's four parallel lists; text_offset counts characters from the beginning of the output."""
        shown = self._head.shown(output)
        if shown is None:
            return None
        offset = self._offsets.get(choice, 0)
        offsets: list[int] = []
        for each in shown:
            offsets.append(offset)
            offset += len(self._text(each.token_id))
        self._offsets[choice] = offset
        return {
            "tokens": [self._text(each.token_id) for each in shown],
            "token_logprobs": [each.logprob for each in shown],
            "top_logprobs": [{self._text(token_id): logprob for token_id, logprob in each.top} for each in shown],
            "text_offset": offsets,
        }

    def _text(self, token_id: int) -> str:
        return self._head.naming.token_bytes(token_id).decode("utf-8", "replace")


def _choice(index: int, news: Mapping[str, Any], finish_reason: str | None = None) -> Json:
    return {"index": index, **news, "finish_reason": finish_reason}
