"""GGUF files: the same model as its safetensors, tokenizers rebuilt from metadata, damage and unknowns named."""

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from kvterrace.engine.model import ModelError, load_model
from kvterrace.engine.model.gguf_file import GgufFile
from kvterrace.engine.model.gguf_tokenizer import build_tokenizer, eos_ids
from tokenizers import pre_tokenizers

pytestmark = pytest.mark.unit

TOLERANCE = 1e-4
TOKENS = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(5)).tolist()
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "embed_tokens": "token_embd",
}


def gguf_name(name: str) -> str:
    name = name.removeprefix("model.")
    for hf, short in NAMES.items():
        name = name.replace(hf, short)
    name = name.replace("layers.", "blk.").replace("lm_head", "output")
    return "output_norm.weight" if name == "norm.weight" else name


def permute(values: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's converter does it for llama files."""
    shaped = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return shaped.swapaxes(1, 2).reshape(values.shape)


def write_gguf(path: Path, model: Any, arch: str, *, extra: dict[str, Any] | None = None, drop: str = "") -> Path:
    config = model.config
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(ALPHABET)
    writer.add_token_types([1] * len(ALPHABET))
    writer.add_token_merges([])
    writer.add_eos_token_id(7)
    for key, value in (extra or {}).items():
        if isinstance(value, np.ndarray):
            writer.add_tensor(key, value)
        else:
            writer.add_key_value(key, *value)
    for name, tensor in model.state_dict().items():
        stored, values = gguf_name(name), tensor.float().numpy()
        if stored == drop:
            continue
        if arch == "llama" and "attn_q." in stored:
            values = permute(values, config.num_attention_heads)
        if arch == "llama" and "attn_k." in stored:
            values = permute(values, config.num_key_value_heads)
        writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_logits_of_the_model_it_was_made_from(
    write_model: Any, runner: Any, tmp_path: Path, arch: str
) -> None:
    sizes = {"num_attention_heads": 4, "head_dim": 16}
    _, model = write_model(arch, **(sizes if arch != "qwen2" else {}))
    loaded = load_model(write_gguf(tmp_path / "tiny.Q8.gguf", model, arch))
    with torch.inference_mode():
        want = model(torch.tensor([TOKENS])).logits[0]
    assert (runner(loaded).step([TOKENS]) - want).abs().max() <= TOLERANCE
    assert loaded.name == "tiny.Q8"
    assert loaded.tokenizer.eos_ids == {7}
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("héllo 42", add_special=True)) == "héllo 42"


def test_llama3_frequency_factors_come_from_their_tensor(write_model: Any, runner: Any, tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    _, model = write_model("llama", rope={**scaling, "original_max_position_embeddings": 64})
    plain = 1.0 / 10000.0 ** (torch.arange(0, 16, 2).float() / 16)
    factors = (plain / model.model.rotary_emb.inv_freq).numpy()
    loaded = load_model(write_gguf(tmp_path / "l3.gguf", model, "llama", extra={"rope_freqs.weight": factors}))
    with torch.inference_mode():
        want = model(torch.tensor([TOKENS])).logits[0]
    assert (runner(loaded).step([TOKENS]) - want).abs().max() <= TOLERANCE


def test_yarn_metadata_is_honoured(write_model: Any, runner: Any, tmp_path: Path) -> None:
    _, model = write_model("qwen2", rope={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64})
    extra = {
        "qwen2.rope.scaling.type": ("yarn", gguf.GGUFValueType.STRING),
        "qwen2.rope.scaling.factor": (4.0, gguf.GGUFValueType.FLOAT32),
        "qwen2.rope.scaling.original_context_length": (64, gguf.GGUFValueType.UINT32),
    }
    loaded = load_model(write_gguf(tmp_path / "yarn.gguf", model, "qwen2", extra=extra))
    with torch.inference_mode():
        want = model(torch.tensor([TOKENS])).logits[0]
    assert (runner(loaded).step([TOKENS]) - want).abs().max() <= TOLERANCE


def test_a_missing_and_an_unknown_tensor_are_named(write_model: Any, tmp_path: Path) -> None:
    _, model = write_model("llama")
    with pytest.raises(ModelError, match=r"missing, such as model\.layers\.1\.mlp\.down_proj\.weight"):
        load_model(write_gguf(tmp_path / "a.gguf", model, "llama", drop="blk.1.ffn_down.weight"))
    extra = {"blk.0.ssm_conv1d.weight": np.zeros((4, 4), np.float32)}
    with pytest.raises(ModelError, match=r"blk\.0\.ssm_conv1d\.weight"):
        load_model(write_gguf(tmp_path / "b.gguf", model, "llama", extra=extra))


def test_damaged_files_are_refused(write_model: Any, tmp_path: Path) -> None:
    _, model = write_model("llama")
    path = write_gguf(tmp_path / "whole.gguf", model, "llama")
    whole = path.read_bytes()
    for content, named in (
        (b"GGML" + whole[4:], "not a GGUF file"),
        (b"", "not a GGUF file"),
        (whole[:-1000], "truncated: tensor"),
        (whole[:500], "damaged or truncated"),
        (whole[:4] + struct.pack("<I", 1) + whole[8:], "version 1"),
        (whole[:4] + struct.pack(">I", 3) + whole[8:], "little-endian"),
        (whole[:24] + b"\xff" * 8 + whole[32:], "damaged or truncated"),
    ):
        path.write_bytes(content)
        with pytest.raises(ModelError, match=named):
            load_model(path)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q8_0", "BF16", "F16"])
def test_quantised_tensors_are_dequantised(tmp_path: Path, kind: str) -> None:
    quant = gguf.GGMLQuantizationType[kind]
    values = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    stored = quantize(values, quant)
    writer = gguf.GGUFWriter(tmp_path / "q.gguf", "llama")
    writer.add_tensor("t", stored, raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "q.gguf")
    assert file.tensors["t"].shape == (6, 64)
    np.testing.assert_array_equal(file.read("t"), dequantize(stored, quant))


def byte_level_meta(pre: str, *, merges: list[str] | None = None, tokens: list[str] | None = None) -> dict[str, Any]:
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": ALPHABET + (tokens or []),
        "tokenizer.ggml.token_type": [1] * len(ALPHABET) + [1] * len(tokens or []),
        "tokenizer.ggml.merges": merges or [],
    }


@pytest.mark.parametrize(
    ("pre", "text", "pieces"),
    [
        ("gpt-2", "It's 2024  ok", ["It", "'s", "Ġ2024", "Ġ", "Ġok"]),
        ("smollm", "It's 2024  ok", ["It", "'s", "Ġ", "2", "0", "2", "4", "Ġ", "Ġok"]),
        ("llama-bpe", "IT'S 2024 a.b\n\nc", ["IT", "'S", "Ġ", "202", "4", "Ġa", ".b", "ĊĊ", "c"]),
        ("qwen2", "It's 2024\n c", ["It", "'s", "Ġ", "2", "0", "2", "4", "Ċ", "Ġc"]),
        ("tekken", "HelloWorld 12", ["Hello", "World", "Ġ", "1", "2"]),
        ("default", "ab 1234$x", ["ab", "Ġ", "123", "4", "$", "x"]),
    ],
)
def test_text_is_split_as_the_named_pre_tokenizer_does(pre: str, text: str, pieces: list[str]) -> None:
    tokenizer = build_tokenizer(byte_level_meta(pre))
    assert [piece for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text)] == pieces


def test_an_unknown_pre_tokenizer_or_model_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match=r"pre-tokenizer chatglm-bpe .*smollm.*qwen2"):
        build_tokenizer(byte_level_meta("chatglm-bpe"))
    with pytest.raises(ModelError, match=r"tokenizer bert .*gpt2, llama"):
        build_tokenizer(byte_level_meta("gpt-2") | {"tokenizer.ggml.model": "bert"})


def test_marked_tokens_stay_whole_and_known_ends_end() -> None:
    meta = byte_level_meta("gpt-2", tokens=["<|im_end|>", "<think>", "<|start|>"])
    meta["tokenizer.ggml.token_type"][-3:] = [3, 4, 3]
    meta["tokenizer.ggml.eos_token_id"] = 2
    tokenizer = build_tokenizer(meta)
    assert tokenizer.encode("<|im_end|><think><|start|>").ids == [256, 257, 258]
    assert eos_ids(meta) == {2, 256}


def test_bos_is_added_where_the_file_or_the_kind_says_so() -> None:
    meta = byte_level_meta("gpt-2") | {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.add_bos_token": True}
    text_ids = build_tokenizer(byte_level_meta("gpt-2")).encode("hi").ids
    assert build_tokenizer(meta).encode("hi").ids == [1, *text_ids]
    assert build_tokenizer(meta).encode("hi", add_special_tokens=False).ids == text_ids
    llama3 = byte_level_meta("llama-bpe") | {"tokenizer.ggml.bos_token_id": 1}
    assert build_tokenizer(llama3).encode("hi").ids == [1, *text_ids]


def test_sentencepiece_joins_the_pair_that_scores_best() -> None:
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "c", "ab", "bc", "▁ab", "abc"]
    scores = [0.0, 0.0, *[0.0] * 256, -9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0]
    meta = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": [2, 3, *[6] * 256, *[1] * 8],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    tokenizer = build_tokenizer(meta)
    assert tokenizer.encode("ab").tokens == ["<s>", "▁ab"]
    assert tokenizer.encode("abc é").tokens == ["<s>", "▁", "abc", "▁", "<0xC3>", "<0xA9>"]  # bc first, then a + bc
    assert tokenizer.decode(tokenizer.encode("abc é").ids) == "abc é"
