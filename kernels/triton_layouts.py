"""Block moves on the GPU: one launch a layer, a program a tile."""

# Triton's types know neither a launch's keywords nor that constexpr takes plain values.
# pyright: reportCallIssue=false, reportArgumentType=false

import triton
from torch import Tensor

from .triton_kernels import move_kernel


def move_triton(source: Tensor, source_blocks: Tensor, target: Tensor, target_blocks: Tensor) -> None:
    """target[target_blocks] = source[source_blocks]; both `[blocks, heads, 2, tokens, dims]` with any strides."""
    _, heads, planes, block_tokens, head_dim = source.shape
    if len(source_blocks):
        move_kernel[(len(source_blocks), heads * planes)](
            source, target, source_blocks, target_blocks, *source.stride(), *target.stride(),
            planes=planes, block_tokens=block_tokens, head_dim=head_dim,
            padded_tokens=triton.next_power_of_2(block_tokens), padded_dim=triton.next_power_of_2(head_dim),
        )  # fmt: skip
