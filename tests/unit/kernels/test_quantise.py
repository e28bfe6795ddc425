"""KV codecs: the bytes are what the format says, errors stay within the stated bounds, and nothing drifts or lies."""

import json
import math
import struct
import threading
from pathlib import Path

import pytest
import torch
from kvterrace.kernels import BlockCodec
from kvterrace.kernels.quantise import decode_plain, encode_plain
from quantise_cases import CODECS, DTYPES, SHAPES, make_pages, same

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).parents[2] / "golden/kv_codec.json"
each_codec = pytest.mark.parametrize("name", CODECS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def encode(codec: BlockCodec, pages: torch.Tensor) -> torch.Tensor:
    blocks = torch.zeros(len(pages), codec.block_bytes, dtype=torch.uint8)
    codec.encode(pages, blocks)
    return blocks


def decode(codec: BlockCodec, blocks: torch.Tensor) -> torch.Tensor:
    pages = torch.empty((len(blocks), *codec.shape), dtype=codec.dtype)
    codec.decode(blocks, pages)
    return pages


def e4m3(code: int) -> float:
    """A code's value, by the book (Micikevicius et al. 2022)."""
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 0x80 else size


def read_by_hand(name: str, block: bytes, shape: tuple[int, ...]) -> list[float]:
    """All elements of a block, in order, from its bytes and the format's text alone."""
    heads, layers, planes, tokens, dim = shape
    rows, values = layers * planes * tokens, []
    for head in range(heads):
        start = head * rows * (dim + 2)
        scales = struct.unpack_from(f"<{rows}H", block, start + rows * dim)
        for row in range(rows):
            (scale,) = struct.unpack("<f", struct.pack("<I", scales[row] << 16))
            for code in block[start + row * dim : start + (row + 1) * dim]:
                value = e4m3(code) if name == "fp8" else code - 256 * (code > 127)
                values.append(value * scale)
    return values


@each_codec
@each_dtype
@each_shape
def test_like_the_plain_reference(name: str, dtype: torch.dtype, shape: tuple[int, ...]):
    codec, pages = BlockCodec(name, shape, dtype), make_pages(shape, dtype)
    blocks = encode(codec, pages)
    want = torch.zeros_like(blocks)
    encode_plain(codec, pages, want)
    codes, scales = codec.parts(blocks)
    want_codes, want_scales = codec.parts(want)
    finite = want_scales.isfinite()
    assert same(scales, want_scales)
    assert torch.equal(codes.view(torch.uint8)[finite], want_codes.view(torch.uint8)[finite])
    want_pages = torch.empty_like(pages)
    decode_plain(codec, blocks, want_pages)
    assert same(decode(codec, blocks), want_pages)


@each_codec
@each_dtype
@each_shape
def test_every_element_is_within_the_stated_error(name: str, dtype: torch.dtype, shape: tuple[int, ...]):
    codec, pages = BlockCodec(name, shape, dtype), make_pages(shape, dtype)
    back = decode(codec, encode(codec, pages))
    assert codec.close(pages, back)
    row = pages[2, 0, 0, 0, 1].float()
    step = row.abs().max().item() / (127 if name == "int8" else 448)
    bound = 0.51 * step if name == "int8" else torch.maximum(row.abs() * 2.0**-4 * 1.01, torch.tensor(step * 2.0**-9))
    assert ((back[2, 0, 0, 0, 1].float() - row).abs() <= bound + torch.finfo(dtype).eps * row.abs()).all()


@each_codec
def test_the_judge_of_closeness_sees_a_single_wrong_element(name: str):
    codec = BlockCodec(name, SHAPES["two heads"], torch.float32)
    pages = make_pages(codec.shape, torch.float32)
    for wrong in (1e30, 0.0, float("nan")):
        back = decode(codec, encode(codec, pages))
        back[2, 1, 2, 1, 3, 3] = wrong  # an outlier column: not small
        assert not codec.close(pages, back)
    invented = decode(codec, encode(codec, pages))
    invented[1, 0, 0, 0, 1] = 0.0  # a row that was not finite must not look like one that was
    assert not codec.close(pages, invented)


@each_codec
def test_a_row_with_a_nan_or_infinity_is_all_nan_and_its_neighbours_are_not(name: str):
    codec = BlockCodec(name, SHAPES["two heads"], torch.float16)
    back = decode(codec, encode(codec, make_pages(codec.shape, torch.float16)))
    bad = back.isnan().nonzero()[:, :5].unique(dim=0).tolist()
    assert bad == [[1, 0, 0, 0, 1], [1, 0, 1, 0, 2]]
    assert back.isnan().sum() == 2 * codec.head_dim


@each_codec
def test_a_token_with_large_values_costs_no_other_token_precision(name: str):
    codec = BlockCodec(name, (1, 1, 2, 4, 16), torch.float32)
    pages = torch.randn(1, *codec.shape)
    alone = decode(codec, encode(codec, pages))
    pages[0, 0, 0, 0, 2] *= 1e6
    beside = decode(codec, encode(codec, pages))
    kept = [0, 1, 3]
    assert torch.equal(beside[0, 0, 0, 0, kept], alone[0, 0, 0, 0, kept])
    assert torch.equal(beside[0, 0, 0, 1], alone[0, 0, 0, 1])


@each_codec
def test_saving_again_what_was_loaded_gives_the_same_bytes(name: str):
    codec = BlockCodec(name, SHAPES["several tiles a head"], torch.float32)
    pages = make_pages(codec.shape, torch.float32).nan_to_num(0.0, 0.0, 0.0)
    blocks = encode(codec, pages)
    assert torch.equal(encode(codec, decode(codec, blocks)), blocks)


@each_codec
@each_dtype
def test_no_finite_value_becomes_infinite_or_changes_sign(name: str, dtype: torch.dtype):
    codec = BlockCodec(name, (1, 1, 2, 2, 16), dtype)
    limits = torch.finfo(dtype)
    for extreme in (limits.max, -limits.max, limits.tiny, 1e-40, 0.0):
        pages = torch.full((1, *codec.shape), extreme, dtype=torch.float64).to(dtype)
        back = decode(codec, encode(codec, pages))
        assert back.isfinite().all()
        assert ((back.sign() == pages.sign()) | (back == 0)).all()
        torch.testing.assert_close(back, pages, rtol=0.08, atol=1e-37)


@each_codec
def test_a_range_of_heads_is_a_range_of_the_blocks_bytes(name: str):
    """What a tensor-parallel rank of half the heads writes, put one after the other, is the whole block."""
    whole = BlockCodec(name, (4, 3, 2, 4, 16), torch.float32)
    half = BlockCodec(name, (2, 3, 2, 4, 16), torch.float32)
    pages = torch.randn(2, *whole.shape)
    ranks = [encode(half, part.contiguous()) for part in pages.split(2, dim=1)]
    assert torch.equal(torch.cat(ranks, dim=1), encode(whole, pages))


@each_codec
def test_threads_do_not_write_into_each_others_scratch(name: str):
    codec = BlockCodec(name, SHAPES["several tiles a head"], torch.float32)
    inputs = [torch.randn(2, *codec.shape) * (index + 1) for index in range(4)]
    want = [encode(codec, pages) for pages in inputs]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(50):
            blocks = encode(codec, inputs[index])
            if not torch.equal(blocks, want[index]) or not codec.close(inputs[index], decode(codec, blocks)):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@each_codec
def test_bytes_that_no_encoder_wrote_are_decoded_without_trouble(name: str):
    """A damaged block is found by its checksum, after the copy: until then it must do no harm."""
    codec = BlockCodec(name, SHAPES["two heads"], torch.float32)
    noise = torch.randint(0, 256, (3, codec.block_bytes), dtype=torch.uint8)
    assert decode(codec, noise).shape == (3, *codec.shape)


@each_codec
def test_no_blocks_are_no_work(name: str):
    codec = BlockCodec(name, SHAPES["two heads"], torch.float32)
    assert decode(codec, encode(codec, torch.zeros(0, *codec.shape))).shape == (0, *codec.shape)


def test_golden_blocks_are_read_and_written():
    """tests/golden/kv_codec.json pins the format for other implementations."""
    for case in json.loads(GOLDEN.read_text())["cases"]:
        shape, block = tuple(case["shape"]), bytes.fromhex(case["block"])
        codec = BlockCodec(case["codec"], shape, DTYPES[case["dtype"]])
        pages = torch.tensor(case["page"], dtype=codec.dtype).view(1, *shape)
        assert bytes(encode(codec, pages)[0].tolist()) == block, case["name"]
        back = decode(codec, torch.tensor(list(block), dtype=torch.uint8)[None])
        want = torch.tensor(read_by_hand(case["codec"], block, shape)).to(codec.dtype).view(back.shape)
        assert torch.equal(back, want), case["name"]
        assert not math.isnan(back.sum().item())


def test_what_cannot_be_coded_is_refused():
    with pytest.raises(ValueError, match="no KV codec is named 'int4'"):
        BlockCodec("int4", (1, 1, 2, 4, 16), torch.float32)
    with pytest.raises(ValueError, match=r"not torch\.int8"):
        BlockCodec("int8", (1, 1, 2, 4, 16), torch.int8)
    with pytest.raises(ValueError, match="odd number of codes"):
        BlockCodec("int8", (1, 1, 1, 3, 5), torch.float32)
    codec = BlockCodec("int8", (1, 1, 2, 4, 16), torch.float32)
    pages, blocks = torch.zeros(2, *codec.shape), torch.zeros(2, codec.block_bytes, dtype=torch.uint8)
    for wrong_pages, wrong_blocks in (
        (pages.half(), blocks),
        (pages[:1], blocks),
        (pages, blocks[:, :-1]),
        (pages.transpose(2, 3), blocks),
    ):
        with pytest.raises(ValueError, match=r"^(pages|blocks) are"):
            codec.encode(wrong_pages, wrong_blocks)
