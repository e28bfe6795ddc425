"""Tokens as text, by a tokenizer.json, and what is said about a file that is none."""

import sys
from pathlib import Path

import pytest
from kvterrace.kvstore.errors import ConfigError
from kvterrace.kvstore.text import Texts, load_tokenizer
from kvterrace.radix import pack_tokens

tokenizers = pytest.importorskip("tokenizers")
pytestmark = pytest.mark.unit


@pytest.fixture
def file(tmp_path: Path):
    """Call it with a name and words: a tokenizer.json of these, numbered from 0."""

    def make(name: str, *words: str) -> Path:
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, words[0]))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        made.add_special_tokens(["<bos>"])
        path = tmp_path / name
        made.save(str(path))
        return path

    return make


def test_text_is_shown_by_the_labels_own_tokenizer_or_everybodys(file) -> None:
    texts = Texts([str(file("all.json", "?", "hello", "world")), f"llama={file('llama.json', '?', 'good', 'day')}"])
    assert texts.of("qwen", pack_tokens([1, 2])) == "hello world"
    assert texts.of("llama", pack_tokens([1, 2])) == "good day"
    assert texts.of("qwen", b"") == ""


def test_without_a_file_for_a_label_there_is_no_text(file) -> None:
    texts = Texts([f"llama={file('llama.json', '?', 'good')}"])
    assert texts.of("qwen", pack_tokens([1])) == ""
    assert Texts().of("llama", pack_tokens([1])) == ""


def test_special_tokens_are_shown_and_unknown_ids_are_left_out(file) -> None:
    texts = Texts([str(file("all.json", "?", "hello", "world"))])
    assert texts.of("", pack_tokens([3, 1, 999, -1, -(2**31), 2])) == "<bos> hello world"


def test_a_tokenizer_reads_what_it_wrote(file) -> None:
    tokenizer = load_tokenizer(file("all.json", "?", "hello", "world"), "--tokenizer")
    assert tokenizer.decode(tokenizer.encode("world hello")) == "world hello"


def test_a_file_may_have_an_equals_sign_in_its_name(file) -> None:
    assert Texts([str(file("a=b.json", "?", "hello"))]).of("any", pack_tokens([1])) == "hello"


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe\x00", b"[1, 2]", b'{"model": 5}'])
def test_what_is_no_tokenizer_stops_the_start_and_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"--text: {path} is no tokenizer\.json"):
        Texts([f"llama={path}"])


def test_a_missing_file_or_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--text: .*gone\.json cannot be read: No such file"):
        Texts([str(tmp_path / "gone.json")])
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Texts([str(tmp_path)])


@pytest.mark.parametrize("said", ["", "llama="])
def test_an_option_without_a_file_says_what_to_give(said: str) -> None:
    with pytest.raises(ConfigError, match=f"--text: '{said}' names no file: give FILE or LABEL=FILE"):
        Texts([said])


def test_the_same_label_twice_is_a_mistake(file) -> None:
    path = file("all.json", "?", "hello")
    with pytest.raises(ConfigError, match="llama is given twice"):
        Texts([f"llama={path}", f"llama={path}"])
    with pytest.raises(ConfigError, match="every label is given twice"):
        Texts([str(path), str(path)])


def test_a_missing_extra_says_what_to_install(file, monkeypatch: pytest.MonkeyPatch) -> None:
    path = file("all.json", "?", "hello")
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    assert Texts().of("", pack_tokens([1])) == "", "nobody needs it without the option"
    with pytest.raises(ConfigError, match=r"--text needs the package tokenizers: pip install 'kvterrace\[text\]'"):
        Texts([str(path)])
