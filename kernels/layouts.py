"""Moves blocks between the canonical layout and the per-layer caches of other engines, whose layout is declared.

Canonical: `[n, kv_heads, layers, 2, block_tokens, head_dim]`. An engine's caches: one tensor a layer, its axes in the
order that a CacheLayout names. A layout is never guessed from a shape, since sizes coincide (16 heads, 16 tokens);
`layout_roundtrip` proves a declaration with the engine's own writer before a byte is served through it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

AXES = ("block", "head", "plane", "token", "dim")


class LayoutMismatch(ValueError):
    """Caches are not what their declared layout says."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """axes: the order of one layer's cache, a permutation of block, head, plane (K, V), token (in the block), dim."""

    axes: tuple[str, ...]

    def __post_init__(self) -> None:
        if sorted(self.axes) != sorted(AXES):
            raise LayoutMismatch(f"axes are {', '.join(self.axes)}; each of {', '.join(AXES)} must appear once")

    def view(self, cache: Tensor) -> Tensor:
        """The cache as `[blocks, kv_heads, 2, block_tokens, head_dim]`, no copy.

        Raises:
            LayoutMismatch: another number of axes, or not two planes.
        """
        if cache.dim() != len(AXES):
            raise LayoutMismatch(f"a cache has {cache.dim()} axes, its layout {len(AXES)}: {', '.join(self.axes)}")
        view = cache.permute([self.axes.index(axis) for axis in AXES])
        if view.shape[2] != 2:
            raise LayoutMismatch(f"axis plane has {view.shape[2]} entries instead of 2 (K, V) in {tuple(cache.shape)}")
        return view


#: vLLM's `[2, num_blocks, block_tokens, kv_heads, head_dim]`.
VLLM_LAYOUT = CacheLayout(("plane", "block", "token", "head", "dim"))

#: The engine's own write of one layer: (layer, keys [T, kv_heads, head_dim], values, slots int64 [T]).
CacheWriter = Callable[[int, Tensor, Tensor, Tensor], None]


def gather_blocks(caches: Sequence[Tensor], layout: CacheLayout, blocks: Tensor, out: Tensor) -> None:
    """Copy an engine's blocks into canonical ones.

    Args:
        caches: one a layer, in order.
        blocks: int64 [n], on the caches' device.
        out: `[n, kv_heads, layers, 2, block_tokens, head_dim]`, the caches' device and dtype.

    Raises:
        LayoutMismatch: caches and `out` disagree about an axis or the dtype.
    """
    views = _views(caches, layout, blocks, out)
    every = torch.arange(len(blocks), device=blocks.device)
    for layer, view in enumerate(views):
        _move(view, blocks, out[:, :, layer], every)


def scatter_blocks(source: Tensor, caches: Sequence[Tensor], layout: CacheLayout, blocks: Tensor) -> None:
    """Copy canonical blocks into an engine's: the inverse of gather_blocks. No two of `blocks` may be alike."""
    views = _views(caches, layout, blocks, source)
    every = torch.arange(len(blocks), device=blocks.device)
    for layer, view in enumerate(views):
        _move(source[:, :, layer], every, view, blocks)


def layout_roundtrip(
    caches: Sequence[Tensor], layout: CacheLayout, write: CacheWriter, blocks: Sequence[int], *, seed: int = 0
) -> None:
    """Prove a declared layout with random data: what the engine writes is what gather finds, and scatter undoes gather.

    Run at registration. A round trip alone would pass with two axes of one size swapped, so the data is written by the
    engine. The blocks' contents are put back.

    Args:
        blocks: an even number of distinct blocks that nobody uses; half are written, half scattered to.

    Raises:
        LayoutMismatch: says where the first difference is.
    """
    if len(blocks) < 2 or len(blocks) % 2 or len(set(blocks)) < len(blocks):
        raise ValueError(f"an even number of distinct blocks is needed, not {list(blocks)}")
    view, device = layout.view(caches[0]), caches[0].device
    _, kv_heads, _, block_tokens, head_dim = view.shape
    everything = torch.tensor(blocks, device=device)
    written, others = everything.chunk(2)
    shape = (len(written), kv_heads, len(caches), 2, block_tokens, head_dim)
    saved = torch.empty((len(blocks), *shape[1:]), dtype=view.dtype, device=device)
    gather_blocks(caches, layout, everything, saved)
    random = torch.Generator().manual_seed(seed)
    want = torch.randn(shape, generator=random).to(device=device, dtype=view.dtype)
    slots = (written[:, None] * block_tokens + torch.arange(block_tokens, device=device)).view(-1)
    try:
        for layer in range(len(caches)):
            keys, values = want[:, :, layer].permute(2, 0, 3, 1, 4).reshape(2, len(slots), kv_heads, head_dim)
            write(layer, keys, values, slots)
        _expect(caches, layout, written, want, "what the engine wrote is not what gather finds")
        turned = want.flip(0, 1, 4)
        scatter_blocks(turned, caches, layout, others)
        _expect(caches, layout, others, turned, "what scatter wrote is not what gather finds")
        _expect(caches, layout, written, want, "scatter changed a block that it was not given")
    finally:
        scatter_blocks(saved, caches, layout, everything)


def _expect(caches: Sequence[Tensor], layout: CacheLayout, blocks: Tensor, want: Tensor, fault: str) -> None:
    got = torch.empty_like(want)
    gather_blocks(caches, layout, blocks, got)
    different = (got != want).nonzero()
    if len(different):
        at = dict(zip(("block", "head", "layer", "plane", "token", "dim"), different[0].tolist(), strict=True))
        at["block"] = int(blocks[at["block"]])
        place = ", ".join(f"{axis} {index}" for axis, index in at.items())
        raise LayoutMismatch(
            f"{fault}: {len(different)} of {want.numel()} elements differ with axes {', '.join(layout.axes)}, "
            f"the first at {place}"
        )


def _views(caches: Sequence[Tensor], layout: CacheLayout, blocks: Tensor, canonical: Tensor) -> list[Tensor]:
    """The caches in canonical order of axes, checked against the other side of the copy."""
    views = [layout.view(cache) for cache in caches]
    want = (len(blocks), views[0].shape[1], len(caches), *views[0].shape[2:])
    if tuple(canonical.shape) != want:
        raise LayoutMismatch(f"canonical blocks are {tuple(canonical.shape)}, the caches' would be {want}")
    for layer, view in enumerate(views):
        if view.shape != views[0].shape or view.dtype != canonical.dtype:
            found, expected = tuple(view.shape), tuple(views[0].shape)
            raise LayoutMismatch(f"layer {layer} is {found} of {view.dtype}, not {expected} of {canonical.dtype}")
    return views


def _move(source: Tensor, source_blocks: Tensor, target: Tensor, target_blocks: Tensor) -> None:
    """target[target_blocks] = source[source_blocks]; both `[blocks, heads, 2, tokens, dims]` with any strides."""
    if source.device.type == "cpu":
        move_plain(source, source_blocks, target, target_blocks)
        return
    from .triton_layouts import move_triton  # noqa: PLC0415  # Triton is optional

    move_triton(source, source_blocks, target, target_blocks)


def move_plain(source: Tensor, source_blocks: Tensor, target: Tensor, target_blocks: Tensor) -> None:
    """The reference, and what the CPU uses."""
    target.index_copy_(0, target_blocks, source.index_select(0, source_blocks))
