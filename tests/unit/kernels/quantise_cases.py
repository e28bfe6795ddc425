"""Pages for the KV codecs. Run as a program, it holds the Triton kernels to the plain reference in the interpreter and
writes the names of the cases that differ, as JSON."""

import json
import sys

import torch
from torch import Tensor

SHAPES = {
    "two heads": (2, 3, 2, 4, 16),
    "head_dim no power of two": (3, 2, 2, 5, 20),
    "one latent plane": (1, 2, 1, 4, 36),
    "several tiles a head": (1, 5, 2, 16, 256),
}
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
CODECS = ("int8", "fp8")


def make_pages(shape: tuple[int, ...], dtype: torch.dtype, count: int = 3) -> Tensor:
    """Values over many orders of magnitude, with outlier columns as keys have them; zero rows, and one not finite."""
    random = torch.Generator().manual_seed(sum(shape))
    pages = torch.randn(count, *shape, generator=random) * torch.logspace(-4, 0, shape[-1])
    pages[..., 3] *= 50
    pages[0, 0, 0, 0, 0] = 0
    pages[0, 0, 1] *= 1e-4
    pages[1, 0, 0, 0, 1, 2] = float("nan")
    pages[1, 0, 1, 0, 2, 3] = -float("inf")
    return pages.to(dtype)


def same(a: Tensor, b: Tensor) -> bool:
    """Equal, NaNs in the same places included."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(a.nan_to_num(), b.nan_to_num())


def triton_differs() -> list[str]:
    from kvterrace.kernels import BlockCodec
    from kvterrace.kernels.quantise import decode_plain, encode_plain
    from kvterrace.kernels.triton_quantise import decode_triton, encode_triton

    bad = []
    for name in CODECS:
        for kind, dtype in DTYPES.items():
            for title, shape in SHAPES.items():
                codec, pages = BlockCodec(name, shape, dtype), make_pages(shape, dtype)
                want, got = (torch.zeros(len(pages), codec.block_bytes, dtype=torch.uint8) for _ in range(2))
                encode_plain(codec, pages, want)
                encode_triton(codec, pages, got)
                want_codes, want_scales = codec.parts(want)
                codes, scales = codec.parts(got)
                known = want_scales.isfinite()
                if not same(scales, want_scales) or not torch.equal(
                    codes.view(torch.uint8)[known], want_codes.view(torch.uint8)[known]
                ):
                    bad.append(f"{name} {kind} {title}: encode")
                want_pages, back = torch.empty_like(pages), torch.empty_like(pages)
                decode_plain(codec, want, want_pages)
                decode_triton(codec, want, back)
                # The interpreter cuts to bfloat16, a GPU rounds.
                near = codec.close(pages, back) if kind == "bfloat16" else same(back, want_pages)
                if not near:
                    bad.append(f"{name} {kind} {title}: decode")
    return bad


if __name__ == "__main__":
    sys.stdout.write(json.dumps(triton_differs()))
