"""Tokenizer and IncrementalDetokenizer: text to ids and back, one token's bytes at a time.

Ids are turned into bytes by a table built once, not by the tokenizers library: a stream then costs one table look-up a
token, and the bytes of half a character are known to be half a character. Thread-safe; a stream belongs to one reader.
"""

import codecs
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import tokenizers

from .chat import ChatTemplate
from .errors import ChatTemplateError, ModelError

_SPACE = "▁"


class Tokenizer:
    """A `tokenizers` tokenizer of the byte-level or the SentencePiece kind.

    eos_ids: the tokens that end a generation. vocab_size: ids are below it (the model's logits may be wider).
    Special tokens (bos, turn markers) are encoded when written out in a text, and decode to nothing.
    """

    def __init__(self, backend: tokenizers.Tokenizer, *, eos_ids: Iterable[int], chat: ChatTemplate | None) -> None:
        backend.no_truncation()  # tokenizer.json may carry a training-time limit, which would cut prompts silently
        backend.no_padding()
        self._backend = backend
        self._chat = chat
        self.eos_ids = frozenset(eos_ids)
        self._bytes, self._strip_first = _token_bytes(backend)
        added = backend.get_added_tokens_decoder()
        self._special = frozenset(token_id for token_id, token in added.items() if token.special)
        self.vocab_size = len(self._bytes)

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """add_special: put the model's bos (and eos) where it was trained with them; a rendered chat has its own."""
        # The batch form lets go of the GIL, so that a long prompt does not stall the streams of others.
        return self._backend.encode_batch_fast([text], add_special_tokens=add_special)[0].ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a whole sequence, special tokens left out; bytes that are not UTF-8 become U+FFFD."""
        text = b"".join(self._visible(token_id) for token_id in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strip_first else text

    def written(self, ids: Sequence[int]) -> str:
        """As decode(), with special tokens written out: what encode() makes these ids of."""
        text = b"".join(self.token_bytes(token_id) for token_id in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self._strip_first else text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, those of special ones too; b"" for an id outside the vocabulary."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_text(self, token_id: int) -> str:
        """token_bytes as text; a part of a character becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def apply_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as one prompt, to be encoded with add_special=False. Raises ChatTemplateError."""
        if self._chat is None:
            raise ChatTemplateError("this model has no chat template; use completions instead of chat")
        return self._chat.render(messages, tools=tools, add_generation_prompt=add_generation_prompt)

    def stream(self) -> "IncrementalDetokenizer":
        return IncrementalDetokenizer(self)

    def _visible(self, token_id: int) -> bytes:
        return b"" if token_id in self._special else self.token_bytes(token_id)


class IncrementalDetokenizer:
    """Text of a growing continuation. Never returns a part of a UTF-8 character: it waits for the rest.

    The pushed pieces and flush() join to what decode() gives, but for the leading space that SentencePiece models drop
    at the start of a text: a continuation keeps it. Constant time a token.
    """

    __slots__ = ("_decoder", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes, perhaps ""."""
        return self._decoder.decode(self._tokenizer._visible(token_id))

    def flush(self) -> str:
        """What is still waiting: "" or U+FFFD for a character that never became whole."""
        return self._decoder.decode(b"", final=True)


def _token_bytes(backend: tokenizers.Tokenizer) -> tuple[list[bytes], bool]:
    """(bytes by id, whether decoding drops a leading space). Raises ModelError for other kinds of decoder."""
    decoder = json.loads(backend.to_str())["decoder"] or {}
    parts = decoder.get("decoders", [decoder])
    kinds = {part.get("type") for part in parts}
    if kinds == {"ByteLevel"}:
        convert, strip = _byte_level, False
    elif kinds and kinds <= {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
        convert = _sentencepiece
        strip = "Strip" in kinds or any(part.get("prepend_scheme", "never") != "never" for part in parts)
    else:
        names = ", ".join(sorted(str(kind) for kind in kinds))
        raise ModelError(f"tokenizer decoder {names} is not supported; supported: byte-level BPE and SentencePiece")
    vocab = backend.get_vocab(with_added_tokens=True)
    added = backend.get_added_tokens_decoder()
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for token, token_id in vocab.items():
        table[token_id] = token.encode() if token_id in added else convert(token)
    return table, strip


def _alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable Latin-1 as itself, the other 68 as U+0100 and on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES = _alphabet()


def _byte_level(token: str) -> bytes:
    try:
        return bytes([_BYTES[character] for character in token])
    except KeyError:  # a token written as plain text, such as a marker that is not declared as added
        return token.encode()


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(_SPACE, " ").encode()
