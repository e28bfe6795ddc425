"""From what a call says (messages, text, token ids) to the prompts' token ids.

Everything here is plain computation and may be slow for long input: the caller runs it in a thread then.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .errors import ApiError, bad_request, too_long
from .params import MAX_CHOICES, ChatCall, CompletionCall

ROLES = ("system", "user", "assistant", "tool")
#: Accepted in a message beside role and content, and handed to the chat template.
MESSAGE_EXTRAS = ("name", "tool_call_id")
#: Longer text is turned into tokens in a thread, so that other clients' streams go on meanwhile.
INLINE_CHARS = 2_000


class PromptTokenizer(Protocol):
    """The part of the model's tokenizer that prompts need."""

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, *, add_special: bool) -> list[int]: ...
    def apply_chat(self, messages: Sequence[Mapping[str, Any]]) -> str: ...


def size_chars(call: ChatCall | CompletionCall) -> int:
    """About how much work prompt_ids() will be. Looks at strings and lists only, at any nesting."""
    todo: list[Any] = [call.messages if isinstance(call, ChatCall) else call.prompt]
    size = 0
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            todo.extend(part.values())
        elif isinstance(part, list) and len(part) < INLINE_CHARS:
            todo.extend(each for each in part if not isinstance(each, int))
            size += len(part)
        elif isinstance(part, (str, list)):
            size += len(part)
    return size


def prompt_ids(call: ChatCall | CompletionCall, tokenizer: PromptTokenizer, limit: int) -> list[list[int]]:
    """Token ids of each prompt (a chat has one). ApiError 400 names the field, and says when one is above `limit`."""
    if isinstance(call, ChatCall):
        messages = check_messages(call.messages)
        try:
            text = tokenizer.apply_chat(messages)
        except ValueError as error:  # the model's template refuses the conversation
            raise bad_request(f"messages: {error}", "messages") from None
        prompts = [_encode(tokenizer, text, limit, "messages", add_special=False)]
    else:
        prompts = _completion_prompts(call.prompt, tokenizer, limit)
        if len(prompts) * call.n > MAX_CHOICES:
            raise bad_request(f"At most {MAX_CHOICES} choices in one call: prompts times n.", "n")
    beyond = [token_id for token_id in call.stop_token_ids if token_id >= tokenizer.vocab_size]
    if beyond:
        raise bad_request(f"stop_token_ids: {beyond[0]} is not a token of this model.", "stop_token_ids")
    return prompts


def check_messages(messages: list[Any]) -> list[dict[str, str]]:
    """Messages with string contents, text parts joined. ApiError 400 with the path of the first one that is wrong."""
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _message(message: Any, path: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise bad_request(f"{path} must be an object with role and content.", path)
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(f"{path}.role must be one of {', '.join(ROLES)}, not {role!r:.100}.", f"{path}.role")
    clean = {"role": str(role), "content": _content(message.get("content"), f"{path}.content", role == "assistant")}
    for name, value in message.items():
        if name in ("role", "content") or value is None or value == []:
            continue
        if name not in MESSAGE_EXTRAS:
            raise bad_request(f"{path}.{name} is not supported by this server.", f"{path}.{name}")
        if not isinstance(value, str):
            raise bad_request(f"{path}.{name} must be a string.", f"{path}.{name}")
        clean[name] = value
    return clean


def _content(content: Any, path: str, may_lack: bool) -> str:
    if isinstance(content, str):
        return content
    if content is None and may_lack:
        return ""
    if not isinstance(content, list):
        raise bad_request(f"{path} must be a string or a list of text parts.", path)
    texts: list[str] = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise bad_request(f"{path}[{i}].type must be text: this server takes no other parts.", f"{path}[{i}].type")
        text = part.get("text")
        if not isinstance(text, str):
            raise bad_request(f"{path}[{i}].text must be a string.", f"{path}[{i}].text")
        texts.append(text)
    return "".join(texts)


def _completion_prompts(prompt: Any, tokenizer: PromptTokenizer, limit: int) -> list[list[int]]:
    if isinstance(prompt, str):
        return [_encode(tokenizer, prompt, limit, "prompt", add_special=True)]
    if not isinstance(prompt, list):
        raise _wrong_prompt()
    if all(type(each) is int for each in prompt):
        return [_ids(prompt, tokenizer.vocab_size, limit)]
    if len(prompt) > MAX_CHOICES:
        raise bad_request(f"prompt: at most {MAX_CHOICES} prompts in one call.", "prompt")
    if all(isinstance(each, str) for each in prompt):
        return [_encode(tokenizer, each, limit, "prompt", add_special=True) for each in prompt]
    if all(isinstance(each, list) and all(type(token) is int for token in each) for each in prompt):
        return [_ids(each, tokenizer.vocab_size, limit) for each in prompt]
    raise _wrong_prompt()


def _wrong_prompt() -> ApiError:
    return bad_request(
        "prompt must be a string, a list of strings, a list of token ids, or a list of such lists.",
        "prompt",
        "invalid_value",
    )


def _encode(tokenizer: PromptTokenizer, text: str, limit: int, param: str, *, add_special: bool) -> list[int]:
    ids = tokenizer.encode(text, add_special=add_special)
    return _bounded(ids, limit, param)


def _ids(ids: list[int], vocab_size: int, limit: int) -> list[int]:
    _bounded(ids, limit, "prompt")
    wrong = next((token_id for token_id in ids if not 0 <= token_id < vocab_size), None)
    if wrong is not None:
        raise bad_request(f"prompt: {wrong} is not a token of this model (0 to {vocab_size - 1}).", "prompt")
    return ids


def _bounded(ids: list[int], limit: int, param: str) -> list[int]:
    if not ids:
        raise bad_request(f"{param} must not be empty.", param)
    if len(ids) > limit:
        raise too_long(len(ids), limit, param)
    return ids
