"""The attention suite and the block moves on a CUDA device."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from kvterrace.kernels import VLLM_LAYOUT, BlockCodec, ReferenceAttention, gather_blocks, layout_roundtrip, make_backend
from torch import Tensor

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def _cases(name: str) -> Any:
    path = Path(__file__).parents[1] / "unit" / "kernels" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


suite = _cases("attention_cases")
codecs = _cases("quantise_cases")
EVERY = suite.CASES | suite.LONG_CASES


@pytest.mark.parametrize("case", EVERY.values(), ids=EVERY)
def test_like_the_reference(case: Any):
    difference, same_pool = suite.compare(case, make_backend("cuda", scale=case.scale), "cuda")
    assert difference <= 1e-5
    assert same_pool


@pytest.mark.parametrize("name", ["mixed", "long decodes", "long chunk", "wide heads"])
def test_bfloat16_keeps_its_precision(name: str):
    difference, same_pool = suite.compare(EVERY[name], make_backend("cuda"), "cuda", torch.bfloat16)
    assert difference < 0.03
    assert same_pool


def test_a_decode_does_not_depend_on_the_batch_in_a_bit():
    long = suite.Case([(1, 700)])
    together = suite.Case([(1, 700), (1, 1500), (40, 64), (1, 3)])
    problem, alone = suite.make(together), suite.make(long)
    pages = alone.batch.block_tables[0].long()
    problem.pool[problem.batch.block_tables[0, : len(pages)].long()] = alone.pool[pages]
    for name in ("q", "k", "v"):
        getattr(problem, name)[:1] = getattr(alone, name)
    beside, _ = problem.attend(make_backend("cuda"), None, "cuda")
    single, _ = alone.attend(make_backend("cuda"), None, "cuda")
    assert torch.equal(beside[:1], single)
    want, _ = alone.attend(ReferenceAttention(), None)
    torch.testing.assert_close(single, want, atol=1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_block_moves(dtype: torch.dtype):
    caches = [torch.randn(2, 8, 16, 3, 80, device="cuda").to(dtype) for _ in range(3)]

    def write(layer: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        caches[layer].view(2, 8 * 16, 3, 80)[:, slots] = torch.stack((keys, values))

    layout_roundtrip(caches, VLLM_LAYOUT, write, [7, 2, 0, 5])
    blocks = torch.tensor([3, 6], device="cuda")
    on_gpu = torch.empty(2, 3, 3, 2, 16, 80, dtype=dtype, device="cuda")
    gather_blocks(caches, VLLM_LAYOUT, blocks, on_gpu)
    on_cpu = torch.empty_like(on_gpu, device="cpu")
    gather_blocks([cache.cpu() for cache in caches], VLLM_LAYOUT, blocks.cpu(), on_cpu)
    assert torch.equal(on_gpu.cpu(), on_cpu)


@pytest.mark.parametrize("name", codecs.CODECS)
@pytest.mark.parametrize("dtype", codecs.DTYPES.values(), ids=codecs.DTYPES)
@pytest.mark.parametrize("shape", codecs.SHAPES.values(), ids=codecs.SHAPES)
def test_kv_codecs(name: str, dtype: torch.dtype, shape: tuple[int, ...]):
    """What the device coded, the CPU reads, and the other way round."""
    codec, pages = BlockCodec(name, shape, dtype), codecs.make_pages(shape, dtype)
    ours = torch.zeros(len(pages), codec.block_bytes, dtype=torch.uint8, device="cuda")
    theirs = torch.zeros(len(pages), codec.block_bytes, dtype=torch.uint8)
    codec.encode(pages.cuda(), ours)
    codec.encode(pages, theirs)
    on_cpu, on_gpu = torch.empty_like(pages), torch.empty_like(pages, device="cuda")
    codec.decode(ours.cpu(), on_cpu)
    codec.decode(theirs.cuda(), on_gpu)
    assert codec.close(pages, on_cpu)
    assert codec.close(pages, on_gpu.cpu())
