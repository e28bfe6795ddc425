"""Through a lossy codec: what comes back is near, what is damaged is noticed, and no other engine ever gets it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from kvterrace.connector import KvterraceError
from kvterrace.connector.base import LoadDone, Offer, SaveDone
from kvterrace.connector.copiers import HostCodecCopier, make_codec, make_copier
from kvterrace.connector.factory import Model, Place, make_connector, namespace_of
from kvterrace.connector.registration import random_pages, same_blocks
from kvterrace.kernels import BlockCodec
from kvterrace.kvstore.embedded import EmbeddedClient
from kvterrace.proto import FieldError

pytestmark = pytest.mark.unit

B = 4  # block_tokens of the rig
each_codec = pytest.mark.parametrize("codec", ["int8", "fp8"])


def decoded(codec: str, pages: torch.Tensor) -> torch.Tensor:
    """What pages become on their way through a codec."""
    block_codec = BlockCodec(codec, tuple(pages.shape[1:]), pages.dtype)
    blocks = torch.zeros(len(pages), block_codec.block_bytes, dtype=torch.uint8)
    block_codec.encode(pages.contiguous(), blocks)
    back = torch.empty_like(pages.contiguous())
    block_codec.decode(blocks, back)
    return back


@each_codec
@pytest.mark.parametrize("length", [B - 1, B, B + 1, 5 * B - 1, 5 * B, 5 * B + 1])
def test_a_prefix_of_any_length_comes_back_as_its_codec_leaves_it(make_rig, tokens, codec: str, length: int):
    rig = make_rig(codec=codec)
    assert rig.started == ""
    prompt, full = tokens(length), length // B
    source, target = [40, 3, 17, 18, 9][:full], [5, 6, 30, 8, 1][:full]
    data = torch.randn(full, *rig.pool.shape[1:])
    rig.pool[source] = data
    assert rig.save("a", prompt, 0, source) == SaveDone("a", 0, full, full)
    assert torch.equal(rig.pool[source], data), "saving must not touch the engine's own pages"
    assert rig.fetch("b", prompt, 0, full).blocks == full
    if full:
        assert rig.load("b", target) == LoadDone("b", full, {"dram": full * B}, "")
        assert torch.equal(rig.pool[target], decoded(codec, data))
        assert not torch.equal(rig.pool[target], data)
        untouched = [page for page in range(len(rig.pool)) if page not in (*source, *target)]
        assert not rig.pool[untouched].any()
    rig.settle()


@each_codec
def test_bytes_are_counted_as_they_are_stored(make_rig, tokens, codec: str):
    rig = make_rig(codec=codec)
    prompt = tokens(3 * B)
    rig.saved(prompt, range(3))
    rig.fetch("a", prompt, 0, 3)
    rig.load("a", range(10, 13))
    stored = 3 * 2 * 3 * 2 * B * (8 + 2)  # 3 blocks of 2 heads, 3 layers, K and V, 4 tokens: 8 codes and a scale each
    status = rig.connector.status()
    assert (status.saved_bytes, status.loaded_bytes) == (stored, stored)


@each_codec
@pytest.mark.parametrize("place", [0, 17, -1])
def test_a_flipped_bit_in_codes_or_scales_ends_the_load_before_that_block(make_rig, tokens, codec: str, place: int):
    rig = make_rig(codec=codec)
    prompt = tokens(5 * B)
    rig.saved(prompt, range(5))
    arena = rig.client.arena
    arena.block(rig.slot_of(prompt, 2))[: arena.block_bytes][place] ^= 1
    assert rig.fetch("a", prompt, 0, 5).blocks == 5
    assert rig.load("a", range(10, 15)) == LoadDone("a", 2, {"dram": 2 * B}, "corrupt")
    rig.settle()


@pytest.mark.parametrize(("writer", "reader"), [("int8", "none"), ("none", "int8"), ("int8", "fp8"), ("fp8", "int8")])
def test_what_one_codec_stored_is_no_hit_for_another(make_rig, tokens, writer: str, reader: str):
    rig = make_rig(codec=writer)
    prompt = tokens(3 * B)
    rig.saved(prompt, range(3))

    async def ask(codec: str) -> int:
        client = EmbeddedClient(rig.store, namespace_of(rig.pool, Model(bytes(32), kv_codec=codec)))
        await client.start()
        acquired = await client.acquire(prompt, skip=0, deadline_s=1.0)
        await client.close()
        return len(acquired.slots)

    assert rig.bridge.call(lambda: ask(writer), 5.0) == 3
    assert rig.bridge.call(lambda: ask(reader), 5.0) == 0


@each_codec
def test_a_store_that_means_other_bytes_by_a_slot_is_refused_through_a_codec_too(make_rig, tokens, codec: str):
    rig = make_rig(codec=codec, overlapping=True)
    assert rig.started == "self_test"
    assert rig.fetch("b", tokens(2 * B), 0, 2) == Offer("b", 0, {}, "self_test")
    rig.settle()


@each_codec
def test_the_self_test_judges_the_slots_and_what_came_back(codec: str):
    """Two faults that cancel each other out (heads swapped on both ways) are seen in the slots."""
    pool = torch.zeros(4, 2, 3, 2, B, 8)
    layout = namespace_of(pool, Model(bytes(32), kv_codec=codec)).layout
    block_codec = make_codec(layout)
    assert block_codec is not None
    exact = random_pages(pool[:2], layout)
    slots = torch.zeros(2, layout.block_bytes, dtype=torch.uint8)
    block_codec.encode(exact, slots)
    assert same_blocks(layout, exact, decoded(codec, exact), slots)
    swapped = slots.view(2, 2, -1).flip(1).reshape(slots.shape)
    assert not same_blocks(layout, exact, decoded(codec, exact), swapped)
    assert not same_blocks(layout, exact, decoded(codec, exact).flip(1), slots)


@each_codec
def test_pages_are_decoded_from_the_very_bytes_that_are_verified(codec: str):
    """A slot that changes while it is read cannot slip between the copy and the checksum."""
    pool = torch.randn(4, 2, 3, 2, B, 8)
    layout = namespace_of(pool, Model(bytes(32), kv_codec=codec)).layout
    copier = make_copier(pool, layout)
    assert isinstance(copier, HostCodecCopier)
    slots = torch.zeros(2, layout.block_bytes, dtype=torch.uint8).numpy()
    checked = copier.to_slots(0, slots, copier.fence()).copy()
    assert (checked == slots).all()
    verified = copier.to_pages(slots, 2, copier.fence())
    slots[:] ^= 0xFF
    assert (verified == checked).all()


def test_a_pool_that_cannot_be_coded_or_an_unknown_codec_stops_the_start():
    pool = torch.zeros((4, 2, 3, 2, B, 8), dtype=torch.float32)
    place = Place(dram_bytes=1 << 20)
    for bad, wrong, named in ((pool, "int4", "kv_codec"), (pool.to(torch.int8), "int8", "dtype")):
        with pytest.raises((FieldError, KvterraceError), match=named):
            make_connector("embedded", bad, lambda: None, model=Model(bytes(32), kv_codec=wrong), place=place)


def test_the_namespace_says_both_what_was_computed_and_what_is_stored():
    pool = torch.zeros((4, 2, 3, 2, B, 8), dtype=torch.bfloat16)
    exact, lossy = (namespace_of(pool, Model(bytes(32), kv_codec=codec)) for codec in ("none", "int8"))
    assert (exact.layout.dtype, lossy.layout.dtype) == ("bfloat16", "bfloat16+int8")
    assert lossy.layout == dataclasses.replace(exact.layout, dtype="bfloat16+int8")
    assert lossy.diff(exact) == ("dtype",)
