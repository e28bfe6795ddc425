"""KV bytes a token, of models whose configurations and sizes are published (fields written down here)."""

import json
import struct
from pathlib import Path

import pytest
from kvterrace.kvstore.sizing.hf_config import shape_of
from kvterrace.kvstore.sizing.model import load_shape
from kvterrace.kvstore.sizing.shape import STATE, WINDOW, SizingError

pytestmark = pytest.mark.unit


def llama(**more: object) -> dict[str, object]:
    """Llama 3.1 8B."""
    return {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "torch_dtype": "bfloat16",
    } | more


LLAMA_70B = llama(hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64)
QWEN25_7B = llama(
    model_type="qwen2",
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    vocab_size=152064,
    sliding_window=131072,
    use_sliding_window=False,
    max_window_layers=28,
)
MIXTRAL = llama(model_type="mixtral", vocab_size=32000, num_local_experts=8, sliding_window=None)
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
}
GEMMA2_9B = llama(
    model_type="gemma2",
    hidden_size=3584,
    intermediate_size=14336,
    num_hidden_layers=42,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=256,
    vocab_size=256000,
    sliding_window=4096,
)
QWEN3_30B_A3B = llama(
    model_type="qwen3_moe",
    hidden_size=2048,
    intermediate_size=6144,
    moe_intermediate_size=768,
    num_hidden_layers=48,
    num_key_value_heads=4,
    head_dim=128,
    num_experts=128,
    vocab_size=151936,
)
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50257, "n_positions": 1024}
FALCON_7B = {
    "model_type": "falcon",
    "hidden_size": 4544,
    "num_attention_heads": 71,
    "num_hidden_layers": 32,
    "multi_query": True,
    "vocab_size": 65024,
}
QWEN3_NEXT = llama(
    model_type="qwen3_next",
    hidden_size=2048,
    num_hidden_layers=48,
    num_attention_heads=16,
    num_key_value_heads=2,
    head_dim=256,
    full_attention_interval=4,
)
JAMBA = llama(model_type="jamba", attn_layer_period=8, attn_layer_offset=4)
GPT_OSS_20B = llama(
    model_type="gpt_oss",
    hidden_size=2880,
    intermediate_size=2880,
    num_hidden_layers=24,
    num_attention_heads=64,
    num_key_value_heads=8,
    head_dim=64,
    vocab_size=201088,
    num_local_experts=32,
    sliding_window=128,
    layer_types=["sliding_attention", "full_attention"] * 12,
)


@pytest.mark.parametrize(
    ("raw", "token_bytes", "billions"),
    [
        (llama(), 131_072, 8.03),
        (LLAMA_70B, 327_680, 70.6),
        (QWEN25_7B, 57_344, 7.62),
        (MIXTRAL, 131_072, 46.7),
        (DEEPSEEK_V3, 61 * 576 * 2, 671.0),
        (GEMMA2_9B, 344_064, 9.24),
        (QWEN3_30B_A3B, 98_304, 30.5),
        (GPT2, 36_864, 0.124),
        (FALCON_7B, 8_192, 6.92),
        (QWEN3_NEXT, 24_576, None),
        (JAMBA, 4 * 8 * 128 * 2 * 2, None),
        (GPT_OSS_20B, 49_152, 20.9),
    ],
    ids=lambda value: value.get("model_type") if isinstance(value, dict) else None,
)
def test_kv_of_a_token_in_16_bits_and_parameters_are_the_published_ones(
    raw: dict[str, object], token_bytes: int, billions: float | None
) -> None:
    shape = shape_of(raw, "model")
    assert shape.stored_elements() * 2 == token_bytes
    if billions is None:
        assert shape.parameters == 0  # not guessed
    else:
        assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.02)


def test_windows_are_told_and_a_context_keeps_no_more_than_its_window() -> None:
    shape = shape_of(GEMMA2_9B, "gemma")
    windows = [group for group in shape.groups if group.kind == WINDOW]
    assert [(group.layers, group.window) for group in windows] == [(21, 4096)]
    each = 2 * 8 * 256
    assert shape.context_elements(4096) == 42 * 4096 * each
    assert shape.context_elements(8192) == 21 * 4096 * each + 21 * 8192 * each
    assert any("21 of 42 layers see a window of 4,096" in note for note in shape.notes)


def test_gemma_3_has_a_language_model_within_and_every_sixth_layer_is_global() -> None:
    text = llama(
        model_type="gemma3_text",
        num_hidden_layers=62,
        num_key_value_heads=16,
        head_dim=128,
        sliding_window=1024,
        sliding_window_pattern=6,
    )
    shape = shape_of({"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}, "gemma3")
    assert {group.kind: group.layers for group in shape.groups} == {"window": 52, "full": 10}
    assert any("image" in note for note in shape.notes)


def test_layers_with_a_state_are_told_since_a_prefix_without_it_is_wrong() -> None:
    shape = shape_of(QWEN3_NEXT, "next")
    assert shape.stateful
    assert {group.kind: group.layers for group in shape.groups} == {STATE: 36, "full": 12}
    assert any("must not be reused" in note for note in shape.notes)


def test_heads_fewer_than_ranks_are_there_several_times_and_a_latent_is_on_all() -> None:
    eight = shape_of(llama(), "llama")
    assert [eight.context_elements(1, tp) for tp in (1, 2, 8, 16)] == [65536, 32768, 8192, 8192]
    latent = shape_of(DEEPSEEK_V3, "deepseek")
    assert latent.context_elements(1, 8) == latent.context_elements(1, 1) == 61 * 576


def test_a_window_that_is_switched_off_is_none() -> None:
    assert {group.kind for group in shape_of(QWEN25_7B, "qwen").groups} == {"full"}
    mistral = shape_of(llama(model_type="mistral", sliding_window=4096), "mistral-v0.1")
    assert mistral.context_elements(32768) == mistral.context_elements(4096)


def test_chunked_layers_are_windows_and_every_fourth_is_whole() -> None:
    llama4 = {"text_config": llama(model_type="llama4_text", num_hidden_layers=48, attention_chunk_size=8192)}
    assert {group.kind: group.layers for group in shape_of(llama4, "scout").groups} == {"window": 36, "full": 12}


def test_layers_may_have_heads_of_their_own() -> None:
    openelm = llama(model_type="openelm", num_hidden_layers=4, num_key_value_heads=[2, 2, 4, 8], head_dim=64)
    assert shape_of(openelm, "openelm").stored_elements() == 16 * 64 * 2


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 2560}, "no attention layer"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"hello": 1}, "none of num_hidden_layers"),
        (llama(layer_types=["full_attention", "telepathy"]), "'telepathy' is not known"),
        ({"num_hidden_layers": 2}, "none of num_attention_heads"),
    ],
)
def test_what_cannot_be_sized_says_why(raw: dict[str, object], words: str) -> None:
    with pytest.raises(SizingError, match=words):
        shape_of(raw, "model")


def test_weights_are_the_files_the_index_first(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(llama()))
    assert load_shape(tmp_path).weights_bytes == 0
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(bytes(100))
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(bytes(50))
    assert load_shape(tmp_path).weights_bytes == 150
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 16_060_522_496}}))
    assert load_shape(tmp_path).weights_bytes == 16_060_522_496
    assert load_shape(tmp_path / "config.json").weights_bytes == 0  # the configuration alone was named


def gguf(**more: object) -> bytes:
    """The head of a file that describes SmolLM2-135M, with a vocabulary to skip and one tensor."""
    pairs = {
        "general.architecture": "llama",
        "tokenizer.ggml.tokens": ["a", "bc", ""],
        "tokenizer.ggml.scores": [0.5] * 2000,
        "llama.block_count": 30,
        "llama.context_length": 8192,
        "llama.embedding_length": 576,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
    } | {name.replace("__", "."): value for name, value in more.items()}

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    def typed(value: object) -> bytes:
        if isinstance(value, str):
            return struct.pack("<I", 8) + text(value)
        if isinstance(value, int):
            return struct.pack("<II", 4, value)
        assert isinstance(value, list)
        if isinstance(value[0], str):
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(text, value))
        code, kind = ("f", 6) if isinstance(value[0], float) else ("I", 4)
        return struct.pack(f"<IIQ{len(value)}{code}", 9, kind, len(value), *value)

    body = b"".join(text(name) + typed(value) for name, value in pairs.items())
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 576, 100, 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + body + tensor


def test_a_gguf_files_head_says_it_all(tmp_path: Path) -> None:
    file = tmp_path / "smol.gguf"
    file.write_bytes(gguf() + bytes(1000))
    shape = load_shape(file)
    assert shape.stored_elements() * 4 * 16 == 737_280  # the demo model's block in float32
    assert (shape.max_context, shape.parameters, shape.weights_bytes) == (8192, 57_600, file.stat().st_size)
    assert load_shape(tmp_path) == shape


def test_a_gguf_files_layers_may_differ(tmp_path: Path) -> None:
    file = tmp_path / "hybrid.gguf"
    heads = [0, 0, 2] * 10
    file.write_bytes(gguf(llama__attention__head_count_kv=heads, llama__attention__key_length=128))
    shape = load_shape(file)
    assert shape.stored_elements() == 10 * 2 * 128 * 2
    assert shape.stateful
    file.write_bytes(gguf(llama__attention__kv_lora_rank=512, llama__rope__dimension_count=64))
    assert load_shape(file).stored_elements() == 30 * 576


@pytest.mark.parametrize("cut", [3, 20, 60, 400, 3000])
def test_a_damaged_gguf_file_is_one_line(cut: int, tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(gguf()[:cut])
    with pytest.raises(SizingError, match=r"cut\.gguf is (not a GGUF|damaged)"):
        load_shape(file)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SizingError, match=r"neither config\.json nor"):
        load_shape(tmp_path)
    with pytest.raises(SizingError, match="there is no"):
        load_shape(tmp_path / "absent")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(SizingError, match="is not JSON"):
        load_shape(tmp_path)
