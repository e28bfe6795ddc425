"""What makes KV bytes interchangeable, and what must not be confused with it."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kvterrace.proto import BlockLayout, FieldError, Namespace

pytestmark = pytest.mark.unit

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "namespace.json"
LAYOUT = BlockLayout(kv_heads=3, layers=30, planes=2, block_tokens=16, head_dim=64, dtype="float16")
BASE = Namespace(b"weights-digest-0", LAYOUT)


def from_golden(fields: dict) -> Namespace:
    binary = {"weights_digest", "adapter_digest", "tenant_salt"}
    plain = {key: bytes.fromhex(value) if key in binary else value for key, value in fields.items() if key != "layout"}
    return Namespace(layout=BlockLayout(**fields["layout"]), **plain)


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"], ids=lambda case: case["name"])
def test_golden_vectors(case):
    """Another implementation, and the next version of this one, must find what this one stored."""
    namespace = from_golden(case["namespace"])
    assert namespace.encode().hex() == case["encoding"]
    assert namespace.fingerprint().hex() == case["fingerprint"]


OTHER = {
    "weights_digest": b"weights-digest-1",
    "adapter_digest": b"adapter",
    "first_layer": 30,
    "producer": "vllm",
    "hash_name": "xxh3-128",
    "tenant_salt": b"tenant",
}
OTHER_LAYOUT = {"kv_heads": 4, "layers": 31, "planes": 1, "block_tokens": 32, "head_dim": 128, "dtype": "bfloat16"}


@pytest.mark.parametrize("field", [*OTHER, *OTHER_LAYOUT])
def test_every_field_counts_and_is_named(field):
    """bf16 bytes must not be read as fp16, an adapter's not as the base model's, a tenant's not by another."""
    if field in OTHER:
        other = dataclasses.replace(BASE, **{field: OTHER[field]})
    else:
        other = dataclasses.replace(BASE, layout=dataclasses.replace(LAYOUT, **{field: OTHER_LAYOUT[field]}))
    assert BASE.diff(other) == (field,)
    assert BASE.fingerprint() != other.fingerprint()


def test_label_is_for_people_only():
    named = dataclasses.replace(BASE, label="SmolLM2")
    assert named == BASE
    assert named.fingerprint() == BASE.fingerprint()


short = st.binary(max_size=4)


@given(short, short, short, short)
def test_framing_cannot_collide(adapter, salt, other_adapter, other_salt):
    """Salt and adapter that concatenate to the same bytes are still different namespaces."""
    one = dataclasses.replace(BASE, adapter_digest=adapter, tenant_salt=salt)
    two = dataclasses.replace(BASE, adapter_digest=other_adapter, tenant_salt=other_salt)
    assert (one.encode() == two.encode()) == ((adapter, salt) == (other_adapter, other_salt))


def test_a_byte_moved_between_neighbouring_fields_is_another_namespace():
    one = dataclasses.replace(BASE, hash_name="ab", tenant_salt=b"c")
    two = dataclasses.replace(BASE, hash_name="a", tenant_salt=b"bc")
    assert one.fingerprint() != two.fingerprint()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weights_digest", b"short"),
        ("weights_digest", b"x" * 257),
        ("adapter_digest", b"x" * 257),
        ("tenant_salt", b"x" * 257),
        ("first_layer", -1),
        ("hash_name", ""),
        ("producer", "p" * 257),
    ],
)
def test_impossible_values_name_their_field(field, value):
    with pytest.raises(FieldError, match=field) as caught:
        dataclasses.replace(BASE, **{field: value})
    assert caught.value.field == field
