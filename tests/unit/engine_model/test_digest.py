"""The weights digest names the KV that a model makes: it follows the content and nothing else."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from kvterrace.engine.model import load_model

pytestmark = pytest.mark.unit


def test_same_content_under_another_name_has_the_same_digest(write_model: Any, tmp_path: Path) -> None:
    path, _ = write_model("llama")
    shutil.copytree(path, tmp_path / "renamed")
    first, second = load_model(path), load_model(tmp_path / "renamed")
    assert first.digest == second.digest
    assert len(first.digest) == 32
    assert (first.name, second.name) == ("model", "renamed")


def test_sharding_does_not_change_the_digest(write_model: Any) -> None:
    path, model = write_model("llama")
    digest = load_model(path).digest
    (path / "model.safetensors").unlink()
    model.save_pretrained(path, max_shard_size="100KB")
    assert len(list(path.glob("*.safetensors"))) > 1
    assert load_model(path).digest == digest


def test_one_changed_weight_changes_the_digest(write_model: Any) -> None:
    path, model = write_model("llama")
    digest = load_model(path).digest
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] += 1e-3
    model.save_pretrained(path)
    assert load_model(path).digest != digest


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_theta": 20000.0, "rope_type": "default"}},
        {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}},
        {"rms_norm_eps": 1e-4},
    ],
)
def test_configuration_that_changes_kv_changes_the_digest(
    write_model: Any, edit_json: Any, change: dict[str, Any]
) -> None:
    path, _ = write_model("llama")
    digest = load_model(path).digest
    edit_json(path / "config.json", **change)
    assert load_model(path).digest != digest


def test_a_longer_context_limit_alone_keeps_the_digest(write_model: Any, edit_json: Any) -> None:
    path, _ = write_model("llama")
    digest = load_model(path).digest
    edit_json(path / "config.json", max_position_embeddings=512, eos_token_id=3)
    assert load_model(path).digest == digest


def test_the_dtype_that_kv_is_computed_in_changes_the_digest(write_model: Any) -> None:
    path, _ = write_model("llama")
    assert load_model(path).digest != load_model(path, dtype=torch.bfloat16).digest
