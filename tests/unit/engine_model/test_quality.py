"""The quality gate measures the codec and nothing else, and fails when told to."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from kvterrace.connector import NullConnector
from kvterrace.connector.copiers import HostCodecCopier
from kvterrace.engine import quality_cli
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.model import LoadedModel, load_model
from kvterrace.engine.quality import Cut, QualityError, cut_prompts, measure, read_prompts
from kvterrace.engine.server import launch as launch_module
from kvterrace.proto import KV_CODECS
from typer.testing import CliRunner

pytestmark = pytest.mark.unit

TEXT = "Blocks of keys and values are stored once, and every later prompt that begins alike reads them back. " * 8
SIZES = {"prompt_tokens": 120, "judged_tokens": 20, "block_tokens": 16}


@pytest.fixture
def loaded(write_model) -> LoadedModel:
    directory, _ = write_model("llama")
    return load_model(directory)


def cuts_of(loaded: LoadedModel, most: int = 3) -> list[Cut]:
    return cut_prompts([TEXT], loaded.tokenizer, most=most, **SIZES)


def test_without_a_codec_nothing_differs(loaded: LoadedModel):
    """What is measured is the codec: no noise of the measurement is in it."""
    (exact,) = measure(loaded, cuts_of(loaded), ["none"], block_tokens=16)
    assert (exact.kl_mean, exact.kl_p99, exact.top1, exact.logit_delta) == (0.0, 0.0, 1.0, 0.0)
    assert exact.stored_bytes == exact.exact_bytes


def test_codecs_are_told_apart_in_the_order_asked_for(loaded: LoadedModel):
    int8, fp8 = measure(loaded, cuts_of(loaded), ["int8", "fp8"], block_tokens=16)
    assert (int8.codec, fp8.codec) == ("int8", "fp8")
    assert 0 < int8.kl_mean < fp8.kl_mean < 0.1
    assert 0 < int8.logit_delta < fp8.logit_delta
    assert int8.kl_mean <= int8.kl_p99
    assert (int8.prompts, int8.reused_tokens, int8.positions) == (3, 3 * 96, 3 * 24)
    page = 2 * 3 * 2 * 16 * 16 * 4  # heads, layers, K and V, tokens, head_dim, float32
    assert int8.exact_bytes == page
    assert int8.stored_bytes == 4096, "3,456 bytes of codes and scales, in whole pages"


def test_damage_is_seen(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    """Were the reused pages not those that went through the codec, this would look perfect."""
    monkeypatch.setattr(HostCodecCopier, "to_pages", lambda self, source, page, fence: source)  # the pages stay zero
    (broken,) = measure(loaded, cuts_of(loaded), ["int8"], block_tokens=16)
    (sound,) = measure(loaded, cuts_of(loaded), ["none"], block_tokens=16)
    assert broken.kl_mean > 1e-3
    assert sound.kl_mean == 0.0


def test_kl_is_of_the_exact_distribution_from_the_lossy_one(loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch):
    """Against torch's own, over logits that are known."""
    random = torch.Generator().manual_seed(3)
    exact, lossy = (torch.randn(24, 50, generator=random) for _ in range(2))
    answers = iter([exact, lossy])

    def forward(tokens, positions, plan, rows, backend):
        return next(answers) if len(rows) else None

    monkeypatch.setattr(type(loaded.model), "forward", staticmethod(forward))
    (found,) = measure(loaded, cuts_of(loaded, most=1), ["int8"], block_tokens=16)
    sure, coded = exact.log_softmax(1), lossy.log_softmax(1)
    want = torch.nn.functional.kl_div(coded, sure, log_target=True, reduction="none").sum(1)
    assert found.kl_mean == pytest.approx(want.mean().item(), rel=1e-5)
    assert found.kl_p99 == pytest.approx(np.quantile(want.numpy(), 0.99), rel=1e-5)
    assert found.logit_delta == (exact - lossy).abs().max().item()
    assert found.top1 == (exact.argmax(1) == lossy.argmax(1)).double().mean().item()


def test_a_text_is_cut_into_prompts_with_whole_blocks_to_reuse(loaded: LoadedModel):
    every = cut_prompts([TEXT, "short"], loaded.tokenizer, most=100, **SIZES)
    ids = np.concatenate([cut.ids for cut in every])
    assert ids.tolist() == loaded.tokenizer.encode(TEXT, add_special=True)
    assert all(cut.reused % 16 == 0 and cut.reused > 0 for cut in every)
    assert all(20 <= len(cut.ids) - cut.reused < 36 for cut in every)
    assert len(cuts_of(loaded, most=2)) == 2
    with pytest.raises(QualityError, match="no prompt has 36 tokens"):
        cut_prompts(["short"], loaded.tokenizer, most=1, **SIZES)


@pytest.mark.parametrize(
    ("line", "fault"),
    [('{"prompt": 3}', "line 3 is neither"), ("{", "line 3 is not JSON"), ("[]", "line 3 is neither")],
)
def test_prompts_of_a_file_and_what_is_wrong_with_one(tmp_path: Path, line: str, fault: str):
    file = tmp_path / "prompts.jsonl"
    file.write_text('"one"\n\n{"prompt": "two", "id": 7}\n')
    assert read_prompts(file) == ["one", "two"]
    (tmp_path / "text.md").write_text("# a\n\nb\n")
    assert read_prompts(tmp_path / "text.md") == ["# a\n\nb\n"]
    file.write_text(f'"one"\n"two"\n{line}\n')
    with pytest.raises(QualityError, match=fault):
        read_prompts(file)
    with pytest.raises(QualityError, match=r"absent\.txt cannot be read"):
        read_prompts(tmp_path / "absent.txt")


def test_a_prompt_beyond_the_models_context_is_refused(loaded: LoadedModel):
    cut = Cut(np.zeros(300, dtype=np.int64), 256)
    with pytest.raises(QualityError, match="300 tokens, the model's context 256"):
        measure(loaded, [cut], ["int8"], block_tokens=16)


def test_every_codec_there_is_can_be_asked_for():
    assert quality_cli.CODECS == KV_CODECS


def run(*arguments: str) -> tuple[int, str, str]:
    program = typer.Typer()
    program.command("other")(lambda: None)
    quality_cli.register(program)
    done = CliRunner().invoke(program, ["quality", *arguments])
    return done.exit_code, done.stdout, done.stderr


def test_the_command_reports_as_json_and_table_and_is_a_gate(write_model, tmp_path: Path):
    directory, _ = write_model("llama")
    file = tmp_path / "prompts.txt"
    file.write_text(TEXT)
    few = [str(directory), "--prompts", str(file), "--count", "1", "--prompt-tokens", "60", "--judged-tokens", "8"]
    code, out, _ = run(*few, "--json")
    assert code == 0
    assert [result["codec"] for result in json.loads(out)] == ["fp8", "int8"]
    code, out, _ = run(*few, "--codec", "int8", "--max-kl", "1")
    assert code == 0
    assert "4,096 of 12,288" in out
    assert "66.7%" in out
    code, _, err = run(*few, "--codec", "fp8", "--max-kl", "0")
    assert code == 1
    assert "fp8 has a mean KL of" in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--codec", "int4"], "--codec: 'int4'"),
        (["--dtype", "int8"], "--dtype: 'int8'"),
        (["--device", "abacus"], "'abacus' is not a torch device"),
        ([], "does not exist"),
    ],
)
def test_a_users_mistake_ends_in_one_line(tmp_path: Path, arguments: list[str], named: str):
    file = tmp_path / "prompts.txt"
    file.write_text(TEXT)
    code, _, err = run(str(tmp_path / "absent"), "--prompts", str(file), *arguments)
    assert code == 2
    assert named in err
    assert len(err.strip().splitlines()) == 1


def test_the_codec_that_an_engine_is_told_reaches_its_connector(write_model, monkeypatch: pytest.MonkeyPatch):
    directory, _ = write_model("llama")
    asked = []

    def make(kind, pool, on_event, *, model, place):
        asked.append(model.kv_codec)
        return NullConnector(on_event)

    monkeypatch.setattr(launch_module, "make_connector", make)
    for codec in ("none", "fp8"):
        config = EngineConfig(model=directory, kv_pool_pages=8, kv_codec=codec)
        _, engine = launch_module.launch(config, lambda fraction, what: None, label="m")
        engine.close()
    assert asked == ["none", "fp8"]
