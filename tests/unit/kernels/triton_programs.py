"""What must run in a process of its own: `compile` builds every kernel for a GPU that need not be there, `move` checks
the block move in the interpreter. Writes one JSON value."""

import json
import sys

import torch

SIZES = {
    "block_tokens": 16, "head_dim": 80, "padded_dim": 128, "share": 3, "rows": 64, "keys": 32, "split_keys": 512,
    "planes": 2, "padded_tokens": 16, "largest": 448.0, "whole": False, "tile_rows": 32,
}  # fmt: skip
POINTERS = {
    "slots": "i64", "tables": "i32", "starts": "i32", "contexts": "i32", "partial": "fp32", "source_blocks": "i64",
    "target_blocks": "i64", "codes": "u8", "scales": "i16",
    **dict.fromkeys(("k", "v", "pool", "q", "out", "source", "target", "pages"), "bf16"),
}  # fmt: skip


def compile_all() -> list[str]:
    """Names of the kernels that compile to machine code for compute capability 9.0."""
    import triton
    from kvterrace.kernels import triton_kernels
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = [name for name in vars(triton_kernels) if name.endswith("_kernel")]
    for name in names:
        kernel = getattr(triton_kernels, name)
        constants = {argument: SIZES[argument] for argument in kernel.arg_names if argument in SIZES}
        signature = {
            argument: "constexpr" if argument in constants
            else f"*{POINTERS[argument]}" if argument in POINTERS
            else "fp32" if argument in {"scale", "max_scale"} else "i32"
            for argument in kernel.arg_names
        }  # fmt: skip
        built = triton.compile(ASTSource(kernel, signature=signature, constexprs=constants), GPUTarget("cuda", 90, 32))
        assert built.asm["cubin"]
    return names


def move() -> bool:
    """Whether the Triton move does what the plain one does, between two orders of axes, odd sizes included."""
    from kvterrace.kernels.layouts import move_plain
    from kvterrace.kernels.triton_layouts import move_triton

    source = torch.randn(2, 7, 12, 3, 20).permute(1, 3, 0, 2, 4)
    plain = torch.zeros(5, 3, 4, 2, 12, 20)[:, :, 1]
    blocks, places = torch.tensor([6, 0, 3]), torch.tensor([1, 4, 0])
    by_triton = plain.clone()
    move_plain(source, blocks, plain, places)
    move_triton(source, blocks, by_triton, places)
    return torch.equal(plain, by_triton) and bool(plain.count_nonzero())


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"compile": compile_all, "move": move}[sys.argv[1]]()))
