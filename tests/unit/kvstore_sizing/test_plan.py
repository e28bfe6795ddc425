"""What fits where, by hand and by the command."""

import json
from pathlib import Path

import pytest
import typer
from kvterrace.kvstore.commands.size import size
from kvterrace.kvstore.sizing.hf_config import shape_of
from kvterrace.kvstore.sizing.plan import Demand, make_plan
from typer.testing import CliRunner

pytestmark = pytest.mark.unit

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
GIB = 1 << 30


def run(*arguments: object) -> tuple[int, str, str]:
    program = typer.Typer()
    program.command()(size)
    result = CliRunner().invoke(program, [str(each) for each in arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_tokens_by_tier_are_what_one_computes_by_hand() -> None:
    plan = make_plan(
        shape_of(LLAMA, "llama"),
        Demand(context=8192, concurrency=32, gpu_bytes=80 * GIB, dram_bytes=64 * GIB, nvme_bytes=1000 * GIB),
    )
    gpu, dram, nvme = plan.tiers
    left = int(80 * GIB * 0.9) - plan.weights_bytes
    assert gpu.tokens == left // 131_072 // 16 * 16
    assert gpu.contexts == left // (8192 * GIB // 8192)  # a context takes 1 GiB
    assert (dram.tokens, dram.contexts) == (64 * GIB // 131_072, 64)
    assert 0.8 < nvme.tokens / (1000 * GIB / 131_072) < 0.875  # segments, garbage, headers
    assert plan.needed_bytes == 32 * GIB
    assert "32 are wanted" in plan.verdicts[0]


def test_tensor_parallel_ranks_share_weights_and_heads() -> None:
    model = shape_of(LLAMA, "llama")
    one = make_plan(model, Demand(gpu_bytes=24 * GIB, tp=1))
    four = make_plan(model, Demand(gpu_bytes=24 * GIB, tp=4))
    assert four.gpu_bytes_per_token == one.gpu_bytes_per_token // 4
    assert four.kv_bytes_per_token == one.kv_bytes_per_token  # a store keeps the heads of all ranks
    assert four.tiers[0].tokens > 4 * one.tiers[0].tokens


def test_weights_that_do_not_fit_are_said() -> None:
    plan = make_plan(shape_of(LLAMA, "llama"), Demand(gpu_bytes=8 * GIB))
    assert plan.tiers[0].tokens == 0
    assert "the weights do not fit" in plan.verdicts[0]
    assert make_plan(shape_of(LLAMA, "llama"), Demand(gpu_bytes=12 * GIB, dtype="fp8")).tiers[0].tokens > 0


def test_the_context_is_the_models_unless_given_and_a_longer_one_is_told() -> None:
    short = shape_of(LLAMA | {"max_position_embeddings": 2048}, "short")
    assert make_plan(short, Demand()).context == 2048
    assert make_plan(shape_of(LLAMA, "long"), Demand()).context == 8192
    assert "longer than the model's 2,048" in make_plan(short, Demand(context=4096)).verdicts[0]


def test_a_tier_without_room_for_a_block_holds_nothing() -> None:
    plan = make_plan(shape_of(LLAMA, "llama"), Demand(dram_bytes=4096, nvme_bytes=4096))
    assert [tier.tokens for tier in plan.tiers] == [0, 0]
    assert all("no room for one block" in said for said in plan.verdicts)


def test_the_command_prints_a_table_or_json(folder: Path) -> None:
    code, out, _ = run(folder, "--gpu-memory", "80GiB", "--dram", "64GiB", "--concurrency", 32)
    assert code == 0
    assert "131,072 bytes" in out
    assert "dram" in out
    code, out, _ = run(folder, "--dram", "64GiB", "--kv-dtype", "fp8", "--json")
    said = json.loads(out)
    assert code == 0
    assert said["kv_bytes_per_token"] == 65_536
    assert said["tiers"][0]["tokens"] == 64 * GIB // 65_536


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dram", "lots"], "kvterrace size: --dram: 'lots' is not a size"),
        (["--kv-dtype", "int3"], "kvterrace size: --kv-dtype: 'int3' is none of"),
        (["--context", "-1"], "kvterrace size: --context: -1"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], words: str, folder: Path) -> None:
    code, out, err = run(folder, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(words)
    assert err.count("\n") == 1


def test_a_missing_model_is_one_line(tmp_path: Path) -> None:
    code, _, err = run(tmp_path / "absent")
    assert code == 2
    assert err.startswith("kvterrace size: there is no")
