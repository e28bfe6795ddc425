"""Block geometry: sizes that the arena is cut by, and refusals that say which field is wrong."""

import dataclasses

import pytest
from kvterrace.proto import DTYPE_BYTES, KV_CODECS, BlockLayout, FieldError, Namespace

pytestmark = pytest.mark.unit

LAYOUT = BlockLayout(kv_heads=3, layers=30, planes=2, block_tokens=16, head_dim=64, dtype="float16")


def test_sizes():
    assert LAYOUT.shape == (3, 30, 2, 16, 64)
    assert LAYOUT.block_bytes == 3 * 30 * 2 * 16 * 64 * 2 == 368640
    assert LAYOUT.slot_bytes == LAYOUT.block_bytes, "whole pages already"
    odd = BlockLayout(1, 1, 1, 16, 65, "int8")
    assert (odd.block_bytes, odd.slot_bytes) == (1040, 4096)
    just_over = BlockLayout(1, 1, 1, 1, 4097, "int8")
    assert just_over.slot_bytes == 8192


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kv_heads", 0),
        ("layers", -1),
        ("planes", 3),
        ("planes", 0),
        ("block_tokens", 0),
        ("block_tokens", 4096),
        ("head_dim", True),
        ("head_dim", 64.0),
        ("dtype", "fp16"),
    ],
)
def test_impossible_values_name_their_field(field, value):
    with pytest.raises(FieldError) as caught:
        dataclasses.replace(LAYOUT, **{field: value})
    assert caught.value.field == field


def test_a_block_beyond_reason_is_refused():
    with pytest.raises(FieldError, match="block_bytes"):
        BlockLayout(1024, 1024, 2, 1024, 1024, "float32")


@pytest.mark.parametrize("codec", KV_CODECS)
@pytest.mark.parametrize("element", ["float32", "float16", "bfloat16"])
def test_a_codec_makes_another_element_type_with_its_scales_inside_the_block(element, codec):
    lossy = dataclasses.replace(LAYOUT, dtype=f"{element}+{codec}")
    assert (lossy.element, lossy.codec) == (element, codec)
    assert lossy.block_bytes == 3 * 30 * 2 * 16 * (64 + 2) == 190080
    assert lossy.slot_bytes == 47 * 4096
    assert DTYPE_BYTES[lossy.dtype] == 1
    exact = dataclasses.replace(LAYOUT, dtype=element)
    assert (exact.element, exact.codec) == (element, "")


def test_lossy_and_exact_blocks_never_share_a_namespace():
    """Same weights, same tokens: what one engine stored through a codec is no hit for one without, nor the reverse."""
    names = [*DTYPE_BYTES]
    spaces = [Namespace(bytes(32), dataclasses.replace(LAYOUT, dtype=name)) for name in names]
    assert len({space.fingerprint() for space in spaces}) == len(names)
    assert spaces[names.index("float32")].diff(spaces[names.index("float32+int8")]) == ("dtype",)


@pytest.mark.parametrize("dtype", ["float32+int4", "int8+int8", "float32+", "+int8", "float8_e4m3fn+fp8"])
def test_a_codec_that_does_not_exist_is_refused(dtype):
    with pytest.raises(FieldError) as caught:
        dataclasses.replace(LAYOUT, dtype=dtype)
    assert caught.value.field == "dtype"


def test_scales_at_odd_addresses_are_refused():
    with pytest.raises(FieldError, match="head_dim: must be even"):
        BlockLayout(1, 1, 1, 3, 5, "float32+int8")
