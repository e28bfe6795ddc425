"""BlockCodec on the GPU: one launch a call, a program some rows. Pages and blocks are read and written in place."""

# Triton's types know neither a launch's keywords nor that constexpr takes plain values.
# pyright: reportCallIssue=false, reportArgumentType=false

from typing import Any

import torch
import triton
from torch import Tensor

from .quantise import BlockCodec
from .triton_kernels import encode_kernel, recover_kernel

#: Elements of one program.
TILE = 4096


def encode_triton(codec: BlockCodec, pages: Tensor, blocks: Tensor) -> None:
    """See BlockCodec.encode."""
    grid, sizes = _launch(codec, pages)
    rows, short = len(pages) * codec.heads * codec.rows, blocks.view(torch.int16)
    encode_kernel[grid](pages, blocks, short, rows, codec.rows, codec.max_scale, largest=codec.format.largest, **sizes)


def decode_triton(codec: BlockCodec, blocks: Tensor, pages: Tensor) -> None:
    """See BlockCodec.decode."""
    grid, sizes = _launch(codec, pages)
    rows, short = len(pages) * codec.heads * codec.rows, blocks.view(torch.int16)
    recover_kernel[grid](blocks, short, pages, rows, codec.rows, **sizes)


def _launch(codec: BlockCodec, pages: Tensor) -> tuple[tuple[int], dict[str, Any]]:
    """The grid, and the sizes that are compiled in."""
    padded_dim = triton.next_power_of_2(codec.head_dim)
    tile_rows = max(1, TILE // padded_dim)
    rows = len(pages) * codec.heads * codec.rows
    return (triton.cdiv(rows, tile_rows),), {
        "whole": codec.format.dtype == torch.int8,
        "head_dim": codec.head_dim,
        "padded_dim": padded_dim,
        "tile_rows": tile_rows,
    }
