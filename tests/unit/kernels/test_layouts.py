"""Blocks keep every element between the canonical layout and an engine's, and a wrong declaration is found out."""

from collections.abc import Sequence
from itertools import product

import pytest
import torch
from kvterrace.kernels import (
    VLLM_LAYOUT,
    CacheLayout,
    LayoutMismatch,
    gather_blocks,
    layout_roundtrip,
    scatter_blocks,
)
from torch import Tensor

pytestmark = pytest.mark.unit

LAYERS, BLOCKS, TOKENS, HEADS, DIM = 3, 6, 4, 2, 8
SIZES = {"block": BLOCKS, "head": HEADS, "plane": 2, "token": TOKENS, "dim": DIM}
LAYOUTS = [
    VLLM_LAYOUT,
    CacheLayout(("block", "plane", "token", "head", "dim")),
    CacheLayout(("block", "plane", "head", "token", "dim")),
]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(layout.axes))


def make_caches(layout: CacheLayout, sizes: dict[str, int] = SIZES, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.randn([sizes[axis] for axis in layout.axes]).to(dtype) for _ in range(LAYERS)]


class Writer:
    """An engine's own write: token by token into caches of the layout it truly has."""

    def __init__(self, caches: Sequence[Tensor], layout: CacheLayout, tokens: int = TOKENS) -> None:
        self._caches, self._layout, self._tokens = caches, layout, tokens

    def __call__(self, layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        for row, slot in enumerate(slots.tolist()):
            for plane, fresh in enumerate((keys, values)):
                for head in range(fresh.shape[1]):
                    at = {"block": slot // self._tokens, "token": slot % self._tokens, "plane": plane, "head": head}
                    index = tuple(at.get(axis, slice(None)) for axis in self._layout.axes)
                    self._caches[layer][index] = fresh[row, head]


@each_layout
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gather_takes_each_element_from_its_place(layout: CacheLayout, dtype: torch.dtype):
    caches = make_caches(layout, dtype=dtype)
    blocks = [4, 0, 5]
    out = torch.empty(len(blocks), HEADS, LAYERS, 2, TOKENS, DIM, dtype=dtype)
    gather_blocks(caches, layout, torch.tensor(blocks), out)
    for n, head, layer, plane, token in product(range(3), range(HEADS), range(LAYERS), range(2), range(TOKENS)):
        at = {"block": blocks[n], "head": head, "plane": plane, "token": token, "dim": slice(None)}
        assert torch.equal(out[n, head, layer, plane, token], caches[layer][tuple(at[axis] for axis in layout.axes)])


@each_layout
def test_scatter_undoes_gather_and_touches_nothing_else(layout: CacheLayout):
    caches = make_caches(layout)
    before = [cache.clone() for cache in caches]
    blocks = torch.tensor([3, 1])
    saved = torch.empty(2, HEADS, LAYERS, 2, TOKENS, DIM)
    gather_blocks(caches, layout, blocks, saved)
    scatter_blocks(torch.zeros_like(saved), caches, layout, blocks)
    for cache, old in zip(caches, before, strict=True):
        view, old_view = layout.view(cache), layout.view(old)
        assert view[blocks].count_nonzero() == 0
        assert torch.equal(view[[0, 2, 4, 5]], old_view[[0, 2, 4, 5]])
    scatter_blocks(saved, caches, layout, blocks)
    assert all(torch.equal(cache, old) for cache, old in zip(caches, before, strict=True))


@each_layout
def test_roundtrip_accepts_the_true_layout_and_puts_the_contents_back(layout: CacheLayout):
    caches = make_caches(layout)
    before = [cache.clone() for cache in caches]
    layout_roundtrip(caches, layout, Writer(caches, layout), [5, 0, 2, 3])
    assert all(torch.equal(cache, old) for cache, old in zip(caches, before, strict=True))


def test_roundtrip_finds_two_swapped_axes_of_one_size():
    """As many heads as tokens: no shape tells, only the engine's own writes do."""
    sizes = SIZES | {"head": TOKENS}
    caches = make_caches(VLLM_LAYOUT, sizes)
    before = [cache.clone() for cache in caches]
    declared = CacheLayout(("plane", "block", "head", "token", "dim"))
    with pytest.raises(LayoutMismatch, match=r"what the engine wrote is not what gather finds.*first at block"):
        layout_roundtrip(caches, declared, Writer(caches, VLLM_LAYOUT), [0, 1])
    assert all(torch.equal(cache, old) for cache, old in zip(caches, before, strict=True))


def test_roundtrip_finds_two_blocks_taken_for_two_planes():
    sizes = SIZES | {"block": 2}
    caches = make_caches(VLLM_LAYOUT, sizes)
    declared = CacheLayout(("block", "plane", "token", "head", "dim"))
    with pytest.raises(LayoutMismatch, match="what the engine wrote"):
        layout_roundtrip(caches, declared, Writer(caches, VLLM_LAYOUT), [0, 1])


@pytest.mark.parametrize("blocks", [[], [1], [0, 1, 2], [3, 3]])
def test_roundtrip_wants_pairs_of_distinct_blocks(blocks: list[int]):
    caches = make_caches(VLLM_LAYOUT)
    with pytest.raises(ValueError, match="even number of distinct blocks"):
        layout_roundtrip(caches, VLLM_LAYOUT, Writer(caches, VLLM_LAYOUT), blocks)


def test_disagreements_are_named():
    caches = make_caches(VLLM_LAYOUT)
    blocks, out = torch.tensor([0]), torch.empty(1, HEADS, LAYERS, 2, TOKENS, DIM)
    with pytest.raises(LayoutMismatch, match="each of block, head, plane, token, dim"):
        CacheLayout(("plane", "block", "token", "head", "head"))
    with pytest.raises(LayoutMismatch, match="axis plane has 6 entries"):
        gather_blocks(caches, CacheLayout(("block", "plane", "token", "head", "dim")), blocks, out)
    with pytest.raises(LayoutMismatch, match="canonical blocks are"):
        gather_blocks(caches, VLLM_LAYOUT, blocks, out[:, :, 1:])
    with pytest.raises(LayoutMismatch, match=r"layer 1 is .* torch.float16"):
        gather_blocks([caches[0], caches[1].half(), caches[2]], VLLM_LAYOUT, blocks, out)
    with pytest.raises(LayoutMismatch, match="a cache has 4 axes"):
        VLLM_LAYOUT.view(caches[0][0])
