"""Block geometry: sizes that the arena is cut by, and refusals that say which field is wrong."""

import dataclasses

import pytest
from kvterrace.proto import BlockLayout, FieldError

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
