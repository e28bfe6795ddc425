"""`kvterrace tokenizer MODEL --out FILE`: the file for people who read tokens without the engine."""

import pytest
import typer
from kvterrace.engine import cli, tokenizer_cli
from tokenizers import Tokenizer
from typer.testing import CliRunner

pytestmark = pytest.mark.unit


@pytest.fixture
def run():
    app = typer.Typer()
    cli.register(app)
    return lambda *words: CliRunner().invoke(app, ["tokenizer", *map(str, words)])


def test_it_writes_the_models_tokenizer_and_replaces_what_is_there(run, write_model, tmp_path):
    directory, _ = write_model("llama")
    out = tmp_path / "out.json"
    out.write_text("old")
    result = run(directory, "--out", out)
    assert result.exit_code == 0, result.output
    assert result.output == f"{out}: 256 tokens\n"
    text = "any bytes: ü\n"
    assert (
        Tokenizer.from_file(str(out)).encode(text).ids
        == Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text).ids
    )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model", "out.json"], "no scratch is left"


def test_weights_are_not_needed(run, write_model, tmp_path):
    directory, _ = write_model("qwen2")
    for file in directory.glob("*.safetensors"):
        file.unlink()
    assert run(directory, "--out", tmp_path / "t.json").exit_code == 0


def test_what_cannot_be_read_or_written_is_one_line_and_2(run, write_model, tmp_path):
    directory, _ = write_model("llama")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.gguf").write_text("no model")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text('{"model": 5}')
    cases = (
        ((tmp_path / "nowhere",), "does not exist"),
        ((tmp_path / "empty",), "no tokenizer.json"),
        ((tmp_path / "text.gguf",), "not a GGUF file"),
        ((broken,), "is no tokenizer"),
        ((directory, "--out", tmp_path / "no" / "where.json"), "No such file or directory"),
    )
    for words, said in cases:
        result = run(*words)
        assert result.exit_code == 2, words
        assert said in result.stderr
        assert result.stderr.startswith("kvterrace tokenizer: ")
        assert result.stderr.count("\n") == 1


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    out = tmp_path / "t.json"
    out.write_text("old")
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        tokenizer_cli.write(out, "new")
    assert out.read_text() == "old"
    assert list(tmp_path.iterdir()) == [out]
