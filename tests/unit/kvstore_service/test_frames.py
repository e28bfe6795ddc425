"""Frames: what goes in comes out, and what makes no sense names its field."""

import dataclasses

import pytest
from kvterrace.kvstore.service import frames
from kvterrace.kvstore.service.channel import target_of
from kvterrace.kvstore.service.frames import FrameError
from kvterrace.kvstore.types import SlotRef, Slots
from kvterrace.proto import BlockLayout, FieldError, Namespace
from kvterrace.proto import kv_pb2 as pb

pytestmark = pytest.mark.unit

LAYOUT = BlockLayout(kv_heads=3, layers=30, planes=2, block_tokens=16, head_dim=64, dtype="bfloat16")
NAMESPACE = Namespace(
    weights_digest=b"w" * 32,
    layout=LAYOUT,
    adapter_digest=b"a" * 32,
    first_layer=4,
    producer="engine",
    hash_name="xxh3-128",
    label="model",
)


def test_slots_survive_the_wire_at_their_extremes() -> None:
    refs = (SlotRef(0, 0, 0), SlotRef((1 << 40) - 1, (1 << 32) - 1, (1 << 64) - 1), SlotRef(7, 8, 9))
    sent = pb.Slots.FromString(frames.pack_slots(Slots.of(refs)).SerializeToString())
    assert frames.unpack_slots(sent) == refs
    assert frames.unpack_slots(frames.pack_slots(Slots.of(()))) == ()


def test_the_wire_is_little_endian_whatever_the_machine() -> None:
    packed = frames.pack_slots(Slots.of([SlotRef(1, 2, 3)]))
    assert packed.slots == bytes([1, 0, 0, 0, 0, 0, 0, 0])
    assert packed.generations == bytes([2, 0, 0, 0])
    assert packed.checksums == bytes([3, 0, 0, 0, 0, 0, 0, 0])


def test_every_field_of_a_namespace_survives_the_wire() -> None:
    opening = pb.Open.FromString(frames.pack_open(NAMESPACE, "me").SerializeToString())
    assert frames.unpack_namespace(opening) == NAMESPACE
    assert frames.unpack_namespace(opening).label == "model"
    assert opening.fingerprint == NAMESPACE.fingerprint()
    assert (opening.wire_version, opening.hash_name, opening.client) == (frames.WIRE_VERSION, "xxh3-128", "me")


def test_the_wire_carries_every_identity_field_but_the_salt() -> None:
    names = {field.name for field in dataclasses.fields(Namespace)} - {"layout", "hash_name", "tenant_salt"}
    names |= {field.name for field in dataclasses.fields(BlockLayout)}
    assert names == {field.name for field in pb.NamespaceSpec.DESCRIPTOR.fields}


def test_columns_that_do_not_fit_together_name_their_field() -> None:
    packed = frames.pack_slots(Slots.of([SlotRef(1, 2, 3)]))
    packed.generations += b"\0\0\0\0"
    with pytest.raises(FrameError, match="slots: columns of 1, 2, 1 entries"):
        frames.unpack_slots(packed)
    packed.generations = b"\0"
    with pytest.raises(FrameError, match="generations: 1 bytes are not whole"):
        frames.unpack_slots(packed)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_half_a_token_names_its_field(size: int) -> None:
    with pytest.raises(FrameError, match=f"tokens: {size} bytes"):
        frames.check_tokens(b"\0" * size)


def test_an_impossible_layout_names_its_field() -> None:
    opening = frames.pack_open(NAMESPACE, "")
    opening.namespace.head_dim = 0
    with pytest.raises(FieldError) as error:
        frames.unpack_namespace(opening)
    assert error.value.field == "head_dim"


@pytest.mark.parametrize("address", ["", "unix:relative.sock", "nowhere", "host:port", "http://host:80"])
def test_an_address_that_is_none_is_refused_before_dialling(address: str) -> None:
    with pytest.raises(ValueError, match="unix:/"):
        target_of(address)
