"""Tokenizer and stream: text never holds half a character, prompts are never cut, templates run in a sandbox."""

from typing import Any

import pytest
import tokenizers
from kvterrace.engine.model import ChatTemplateError, ModelError, Tokenizer
from kvterrace.engine.model.chat import ChatTemplate
from tokenizers import decoders, models, normalizers, pre_tokenizers

pytestmark = pytest.mark.unit

TEXTS = ["plain", "naïve café", "漢字かな 한국어", "👍🏽🇩🇪👩‍👩‍👧 mixed", "tabs\t\n\r\n  spaces  ", "\x00\x7f"]


def byte_level() -> tokenizers.Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer: Any = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.add_tokens(["<tool>"])
    return tokenizer


def sentencepiece() -> tokenizers.Tokenizer:
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    vocab |= {piece: 257 + i for i, piece in enumerate(["▁", "a", "b", "▁a"])}
    model = models.BPE(vocab, [("▁", "a")], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer: Any = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def wrap(backend: tokenizers.Tokenizer, template: str | None = None) -> Tokenizer:
    chat = None if template is None else ChatTemplate(template, {"bos_token": "<s>"})
    return Tokenizer(backend, eos_ids=[256], chat=chat)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("text", TEXTS)
def test_text_survives_the_round_trip(make: Any, text: str) -> None:
    tokenizer = wrap(make())
    ids = tokenizer.encode(text, add_special=False)
    assert tokenizer.decode(ids) == text == make().decode(ids)


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("text", TEXTS)
def test_a_stream_emits_whole_characters_as_soon_as_they_are_whole(make: Any, text: str) -> None:
    tokenizer = wrap(make())
    stream, seen = tokenizer.stream(), ""
    ids = tokenizer.encode(text, add_special=False)
    for count, token_id in enumerate(ids, start=1):
        seen += stream.push(token_id)
        assert "\ufffd" not in seen
        whole = b"".join(tokenizer.token_bytes(each) for each in ids[:count]).decode("utf-8", "ignore")
        assert seen == whole
    assert stream.flush() == ""
    assert seen.removeprefix(" " if make is sentencepiece else "") == text


def test_a_character_that_never_becomes_whole_is_replaced_at_the_end() -> None:
    tokenizer = wrap(byte_level())
    ids = tokenizer.encode("ok👍", add_special=False)[:-1]
    stream = tokenizer.stream()
    assert "".join(stream.push(token_id) for token_id in ids) == "ok"
    assert stream.flush() == "\ufffd"
    assert tokenizer.decode(ids) == "ok\ufffd"


def test_invalid_bytes_do_not_hold_back_what_follows() -> None:
    tokenizer = wrap(byte_level())
    half = tokenizer.encode("é", add_special=False)[:1]
    stream = tokenizer.stream()
    assert [stream.push(token_id) for token_id in [*half, *tokenizer.encode("x", add_special=False)]] == ["", "\ufffdx"]


def test_special_tokens_encode_from_text_and_decode_to_nothing() -> None:
    tokenizer = wrap(byte_level())
    ids = tokenizer.encode("a<|end|><tool>", add_special=False)
    assert ids[-2:] == [256, 257]
    assert tokenizer.decode(ids) == "a<tool>"
    assert tokenizer.stream().push(256) == ""
    assert tokenizer.token_text(256) == "<|end|>"


def test_a_continuation_keeps_its_leading_space() -> None:
    # "The capital is" + " a": dropping the space, as at the start of a text, would join the words.
    tokenizer = wrap(sentencepiece())
    ids = tokenizer.encode("a", add_special=False)
    assert tokenizer.decode(ids) == "a"
    assert tokenizer.stream().push(ids[0]) == " a"


def test_ids_outside_the_vocabulary_are_empty() -> None:
    # A model's logits are often wider than its tokenizer, for alignment.
    tokenizer = wrap(byte_level())
    assert tokenizer.vocab_size == 258
    assert tokenizer.decode([5000]) == ""
    assert tokenizer.token_bytes(-1) == b""


def test_a_training_time_truncation_does_not_cut_prompts() -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    assert len(wrap(backend).encode("abcdefgh ijkl", add_special=False)) == 13
    assert len(wrap(backend).encode("ab", add_special=False)) == 2


def test_another_kind_of_tokenizer_is_refused_by_name() -> None:
    backend: Any = tokenizers.Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match=r"WordPiece.*byte-level"):
        wrap(backend)


def test_a_chat_template_sees_messages_tools_and_helpers() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'x' %}{% break %}{% endif %}{{ m.content }};"
        "{{ 'calls' in m }}{% endfor %}{{ tools | tojson }}{{ strftime_now('%%') }}{% if add_generation_prompt %}>"
        "{% endif %}"
    )
    tokenizer = wrap(byte_level(), template)
    messages = [{"role": "user", "content": "<é>", "calls": None}, {"role": "x", "content": "no"}]
    assert tokenizer.apply_chat(messages, tools=[{"a": "<é>"}]) == '<s><é>;False[{"a": "<é>"}]%>'
    assert tokenizer.apply_chat(messages, tools=[], add_generation_prompt=False).endswith("[]%")


def test_a_template_refusal_is_told_in_its_own_words() -> None:
    tokenizer = wrap(byte_level(), "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ChatTemplateError, match="roles must alternate"):
        tokenizer.apply_chat([{"role": "user", "content": "x"}])
    with pytest.raises(ChatTemplateError, match="no chat template"):
        wrap(byte_level()).apply_chat([])
    with pytest.raises(ChatTemplateError, match="does not parse"):
        wrap(byte_level(), "{% if %}")


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ strftime_now.__globals__['os'] }}",
        "{% include '/etc/passwd' %}",
    ],
)
def test_a_hostile_template_stays_in_the_sandbox(attack: str) -> None:
    with pytest.raises(ChatTemplateError, match="refused"):
        wrap(byte_level(), attack).apply_chat([{"role": "user", "content": "x"}])
