"""load_model on directories: what is wrong is named, progress is reported, settings files are honoured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from kvterrace.engine.model import ModelError, load_model
from safetensors.torch import load_file, save_file

pytestmark = pytest.mark.unit

WEIGHT = "model.layers.1.self_attn.k_proj.weight"


def rewrite(path: Path, change: Any) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda tensors: tensors.pop(WEIGHT), f"1 tensors are missing, such as {WEIGHT}"),
        (lambda tensors: tensors.update({WEIGHT: torch.zeros(3, 64)}), rf"{WEIGHT} has shape \[3, 64\]"),
        (lambda tensors: tensors.update({WEIGHT: torch.zeros(32, 64, dtype=torch.int8)}), f"{WEIGHT} is torch.int8"),
        (lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(16)}), "q_norm"),
    ],
)
def test_wrong_tensors_are_named(write_model: Any, change: Any, named: str) -> None:
    path, _ = write_model("llama")
    rewrite(path, change)
    with pytest.raises(ModelError, match=named):
        load_model(path)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("config.json", "no config.json"),
        ("tokenizer.json", "no tokenizer.json"),
        ("model.safetensors", r"no \*.safetensors"),
    ],
)
def test_missing_files_are_named(write_model: Any, file: str, named: str) -> None:
    path, _ = write_model("llama")
    (path / file).unlink()
    with pytest.raises(ModelError, match=named):
        load_model(path)


def test_a_missing_shard_is_named(write_model: Any) -> None:
    path, model = write_model("llama")
    (path / "model.safetensors").unlink()
    model.save_pretrained(path, max_shard_size="100KB")
    gone = sorted(path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError, match=gone.name):
        load_model(path)


def test_a_truncated_file_is_refused(write_model: Any) -> None:
    path, _ = write_model("llama")
    file = path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load_model(path)


def test_a_path_that_is_not_there_says_what_a_model_is(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="Hugging Face directory or a GGUF file"):
        load_model(tmp_path / "nothing")


def test_progress_rises_to_one(write_model: Any) -> None:
    path, _ = write_model("llama")
    seen: list[tuple[float, str]] = []
    load_model(path, progress=lambda fraction, what: seen.append((fraction, what)))
    fractions = [fraction for fraction, _ in seen]
    assert fractions == sorted(fractions)
    assert (fractions[0], fractions[-1]) == (0.0, 1.0)
    assert any("layer 2 of 3" in what for _, what in seen)


def test_the_model_does_not_hold_on_to_the_files(write_model: Any, runner: Any) -> None:
    path, _ = write_model("llama")
    loaded = load_model(path)
    before = runner(loaded).step([[1, 2, 3]])
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(2000)
        file.write(b"\0" * 100_000)
    torch.testing.assert_close(runner(loaded).step([[1, 2, 3]]), before)


def test_ends_come_from_every_settings_file(write_model: Any, edit_json: Any) -> None:
    path, _ = write_model("llama")
    edit_json(path / "config.json", eos_token_id=3)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [4, 5]}))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "!"}}))
    loaded = load_model(path)
    assert loaded.tokenizer.eos_ids == {3, 4, 5, *loaded.tokenizer.encode("!", add_special=False)}


def test_the_template_file_wins_and_tools_choose_their_own(write_model: Any) -> None:
    path, _ = write_model("llama")
    settings = {"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_model(path).tokenizer
    assert tokenizer.apply_chat([]) == "d"
    assert tokenizer.apply_chat([], tools=[{"name": "f"}]) == "t"
    (path / "chat_template.jinja").write_text("file")
    assert load_model(path).tokenizer.apply_chat([]) == "file"
