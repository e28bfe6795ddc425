"""Texts: tokens as people read them, where the operator allows it. Needs the extra `text`, and imports it only then."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from .errors import ConfigError

OPTION = "--text"
MAX_FILE_BYTES = 256 << 20
_KNOWN_IDS = 1 << 31


class Tokenizer(Protocol):
    """What a tokenizer.json makes."""

    def encode(self, text: str) -> Sequence[int]:
        """Token ids, without those that a chat template would add."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Special tokens included; an id that the tokenizer does not have is left out."""
        ...


class Texts:
    """files: LABEL=FILE or FILE (of every other label), each a tokenizer.json, read at once. ConfigError names the one
    that is wrong."""

    def __init__(self, files: Sequence[str] = ()) -> None:
        self._tokenizers: dict[str, Tokenizer] = {}
        for said in files:
            label, _, name = said.rpartition("=")
            if "=" in said and Path(said).exists():  # a file may have the character in its name
                label, name = "", said
            if not name:
                raise ConfigError(f"{OPTION}: {said!r} names no file: give FILE or LABEL=FILE")
            if label in self._tokenizers:
                raise ConfigError(f"{OPTION}: {label or 'every label'} is given twice")
            self._tokenizers[label] = load_tokenizer(Path(name), OPTION)

    def of(self, label: str, tokens: bytes) -> str:
        """Text of packed tokens of a namespace of that label; "" where it is not allowed."""
        tokenizer = self._tokenizers.get(label) or self._tokenizers.get("")
        if tokenizer is None or not tokens:
            return ""
        return tokenizer.decode(np.frombuffer(tokens, dtype="<u4").tolist())


def load_tokenizer(path: Path, option: str) -> Tokenizer:
    """From a tokenizer.json that `option` names. ConfigError: it is not there, is none, or the extra is missing."""
    try:
        from tokenizers import Tokenizer as Library  # noqa: PLC0415  # only where it is wanted
    except ImportError:
        raise ConfigError(f"{option} needs the package tokenizers: pip install 'kvterrace[text]'") from None
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{option}: {path} is larger than {MAX_FILE_BYTES} bytes: give a tokenizer.json")
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from None
    try:
        made = cast(_Library, Library.from_buffer(data))
    except Exception as error:  # noqa: BLE001  # the library raises nothing narrower
        raise ConfigError(f"{option}: {path} is no tokenizer.json: {error}") from None
    return _Adapter(made)


class _Encoding(Protocol):
    ids: list[int]


class _Library(Protocol):
    """As much of tokenizers.Tokenizer as is used here."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> _Encoding: ...

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


class _Adapter:
    def __init__(self, made: _Library) -> None:
        self._made = made

    def encode(self, text: str) -> Sequence[int]:
        return self._made.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._made.decode([each for each in ids if each < _KNOWN_IDS], skip_special_tokens=False)
