"""Prompts in a file: JSON, one a line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from .errors import ConfigError


@dataclass(frozen=True, slots=True)
class Prompt:
    """One of text, token ids and the messages of a chat. number: of its line, from 0; empty lines count, too. more:
    what else the line says, such as "model" or "tools", for an engine."""

    number: int
    text: str = ""
    tokens: Sequence[int] = ()
    messages: Sequence[Any] = ()
    more: Mapping[str, object] | None = None


def count_lines(path: Path) -> int:
    """ConfigError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return sum(1 for _ in file)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def read_prompts(path: Path, start: int = 0) -> Iterator[Prompt]:
    """From that line on, one after the other. ConfigError names the line that is none."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file):
            if number >= start and line.strip():
                try:
                    yield _prompt(number, line)
                except ValueError as error:
                    raise ConfigError(f"{path}, line {number + 1}: {error}") from None


def _prompt(number: int, line: str) -> Prompt:
    try:
        said: object = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError("is no JSON") from None
    if isinstance(said, str):
        said = {"prompt": said}
    if not isinstance(said, dict):
        raise ValueError('must be a text, or an object with "prompt", "tokens" or "messages"')
    row = dict(cast("dict[str, Any]", said))
    prompt, tokens, messages = row.pop("prompt", None), row.pop("tokens", None), row.pop("messages", None)
    if isinstance(prompt, list):
        prompt, tokens = None, cast("list[Any]", prompt)
    if messages:
        return Prompt(number, messages=messages, more=row)
    if tokens:
        if not all(isinstance(each, int) and 0 <= each < 2**31 for each in tokens):
            raise ValueError("its tokens must be ids, whole numbers from 0 to 2^31 - 1")
        return Prompt(number, tokens=tokens, more=row)
    if isinstance(prompt, str) and prompt:
        return Prompt(number, text=prompt, more=row)
    raise ValueError('has no "prompt" (text or token ids), "tokens" or "messages"')
