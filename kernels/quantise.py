"""BlockCodec: lossy int8 and fp8 (e4m3) forms of KV blocks, about a quarter of float32's bytes, half of bfloat16's.

A page is `[kv_heads, layers, planes, block_tokens, head_dim]`; with `rows = layers * planes * block_tokens`, its block
is `kv_heads` times (`[rows, head_dim]` codes of one byte, then `[rows]` scales, bfloat16 little-endian): a range of
heads is a range of bytes. An element is code times scale, in float32, rounded to the pages' dtype.

Each row (one token's keys or values of one head and layer) has its own scale, so that neither a token nor a layer with
large values costs another one its precision, and a block is coded without looking at its neighbours. In float32, coding
what was decoded gives the same bytes again: nothing drifts. A row that holds a NaN or an infinity comes back as NaNs,
never as plausible numbers.
"""

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

SCALE_BYTES = 2
#: Smallest scale: its reciprocal is finite. What it takes away is below 1e-37.
TINY = 2.0**-126
#: Elements of an operation on a CPU. Below 2**15 torch computes in the calling thread: a copy thread must not have a
#: team of its own, which would spin on the cores that the engine's step needs.
TILE = 32_000
#: Added to a small float32 it leaves the nearest whole number, ties to even, in the low bits. torch's own round_ would
#: split even a tile among threads.
ROUNDING = 1.5 * 2.0**23


@dataclass(frozen=True, slots=True)
class CodeFormat:
    """dtype: of the codes. largest: code of a row's largest element.

    relative, absolute: an element is off by at most relative * its size + absolute * the row's largest.
    """

    dtype: torch.dtype
    largest: float
    relative: float
    absolute: float


#: int8 is off by half a step. e4m3 has four significant bits, and steps of 2**-9 near 0.
FORMATS = {
    "int8": CodeFormat(torch.int8, 127.0, 0.0, 0.5 / 127.0),
    "fp8": CodeFormat(torch.float8_e4m3fn, 448.0, 2.0**-4, 2.0**-10 / 448.0),
}


class _Room(threading.local):
    """A thread's scratch memory for one tile: new memory would cost a page fault for every 4 KiB, each time."""

    def __init__(self, rows: int, head_dim: int) -> None:
        self.floats = torch.empty((rows, head_dim))
        self.bits = torch.empty((rows, head_dim), dtype=torch.int16)


class BlockCodec:
    """Between pages and blocks of one shape. Any number of threads may use one; on a CPU each has scratch of its own.

    name: of FORMATS. shape: of a page. dtype: of the pages, float32, float16 or bfloat16. ValueError for others, and
    for rows whose scales would lie at odd addresses.
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        if name not in FORMATS:
            raise ValueError(f"no KV codec is named {name!r}; there are {', '.join(FORMATS)}")
        if dtype not in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"KV codecs take float32, float16 or bfloat16, not {dtype}")
        self.name = name
        self.format = FORMATS[name]
        self.shape = shape
        self.dtype = dtype
        self.heads, self.head_dim = shape[0], shape[-1]
        self.rows = shape[1] * shape[2] * shape[3]
        if self.rows * self.head_dim % 2:
            raise ValueError(f"{self.rows} rows of {self.head_dim} are an odd number of codes; scales need an even one")
        fitting = (rows for rows in range(self.rows, 1, -1) if self.rows % rows == 0 and rows * self.head_dim <= TILE)
        self.room = _Room(next(fitting, 1), self.head_dim)
        self.block_bytes = self.heads * self.rows * (self.head_dim + SCALE_BYTES)
        #: Largest scale, a bfloat16: times the largest code it is still finite in the pages' dtype.
        self.max_scale = _bfloat16_below(torch.finfo(dtype).max / self.format.largest)

    def encode(self, pages: Tensor, blocks: Tensor) -> None:
        """Fill uint8 blocks `[n, block_bytes]` from pages `[n, *shape]`; both contiguous, on one device.

        Queued on the current stream, where there is one. ValueError for tensors of other shapes or dtypes.
        """
        if self._nothing(pages, blocks):
            return
        if pages.device.type == "cpu":
            encode_cpu(self, pages, blocks)
            return
        from .triton_quantise import encode_triton  # noqa: PLC0415  # Triton is optional

        encode_triton(self, pages, blocks)

    def decode(self, blocks: Tensor, pages: Tensor) -> None:
        """Fill pages from blocks, whatever bytes those hold; otherwise as encode()."""
        if self._nothing(pages, blocks):
            return
        if pages.device.type == "cpu":
            decode_cpu(self, blocks, pages)
            return
        from .triton_quantise import decode_triton  # noqa: PLC0415  # Triton is optional

        decode_triton(self, blocks, pages)

    def parts(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Views of blocks: codes `[n, kv_heads, rows, head_dim]`, in the format's dtype, and scales, bfloat16."""
        heads = blocks.view(len(blocks), self.heads, -1)
        codes, scales = heads.split([self.rows * self.head_dim, self.rows * SCALE_BYTES], dim=2)
        return codes.unflatten(2, (self.rows, self.head_dim)).view(self.format.dtype), scales.view(torch.bfloat16)

    def tiles(self, codes: Tensor) -> list[Tensor]:
        """Codes, one view for as many rows as a thread has room for, in order."""
        heads = codes.flatten(0, 1).unflatten(1, (-1, len(self.room.floats))).unbind()
        return [tile for head in heads for tile in head.unbind()]

    def scales(self, largest: Tensor) -> Tensor:
        """bfloat16 scales of rows with these largest absolute elements, float32; NaN for rows that are not finite."""
        finite = torch.where(largest.isfinite(), largest * (1.0 / self.format.largest), torch.nan)
        return finite.clamp_(TINY, self.max_scale).to(torch.bfloat16)

    def close(self, exact: Tensor, decoded: Tensor) -> bool:
        """Whether each element of decoded pages is as near to the exact one as the format and the dtype allow.

        Rows that were not finite must be all NaN. At the very end of float16's range a little more is lost, and here
        reported.
        """
        want, got = exact.float(), decoded.float()
        largest = want.abs().amax(-1, keepdim=True)
        off = self.format.relative * want.abs() + self.format.absolute * 1.01 * largest  # 1.01: the scale's rounding
        off += torch.finfo(self.dtype).eps * largest
        bad = ((got - want).abs() > off).logical_or_(got.isnan())
        return not torch.where(largest.isfinite(), bad, got.isfinite()).any().item()

    def _nothing(self, pages: Tensor, blocks: Tensor) -> bool:
        """Whether there is nothing to do; ValueError if it cannot be done."""
        if tuple(pages.shape[1:]) != self.shape or pages.dtype != self.dtype or not pages.is_contiguous():
            raise ValueError(f"pages are {tuple(pages.shape)} of {pages.dtype}, not [n, *{self.shape}] of {self.dtype}")
        if blocks.shape != (len(pages), self.block_bytes) or blocks.dtype != torch.uint8 or not blocks.is_contiguous():
            raise ValueError(
                f"blocks are {tuple(blocks.shape)} of {blocks.dtype}, not [n, {self.block_bytes}] of uint8"
            )
        return len(pages) == 0


def encode_plain(codec: BlockCodec, pages: Tensor, blocks: Tensor) -> None:
    """The reference of encode: the definition, on any device."""
    codes, scales = codec.parts(blocks)
    exact = pages.view(codes.shape).float()
    scales.copy_(codec.scales(exact.abs().amax(-1)))
    scaled = exact * (1.0 / scales.float())[..., None]
    scaled.clamp_(-codec.format.largest, codec.format.largest)
    codes.copy_(scaled.round_() if codec.format.dtype == torch.int8 else scaled)


def decode_plain(codec: BlockCodec, blocks: Tensor, pages: Tensor) -> None:
    """The reference of decode."""
    codes, scales = codec.parts(blocks)
    pages.view(codes.shape).copy_(codes.float() * scales.float()[..., None])


# Below, the number of operations counts as much as their elements: every tile has the same size, so that scratch memory
# needs no slicing, and pages of float32 are not copied first. Those of other dtypes are: torch is slow on mixed ones.


@torch.inference_mode()
def encode_cpu(codec: BlockCodec, pages: Tensor, blocks: Tensor) -> None:
    """encode_plain a tile at a time, in cache and in this thread."""
    codes, scales = codec.parts(blocks)
    limit, whole, plain = codec.format.largest, codec.format.dtype == torch.int8, codec.dtype == torch.float32
    room = codec.room.floats
    tiles = pages.view(-1, *room.shape).unbind()
    largest = torch.empty((len(tiles), len(room)))
    for tile, top in zip(tiles, largest.unbind(), strict=True):
        torch.amax(torch.abs(tile if plain else room.copy_(tile), out=room), 1, out=top)
    rounded = codec.scales(largest)
    scales.copy_(rounded.view(scales.shape))
    inverse = rounded.float().reciprocal_()[..., None]
    for tile, factor, target in zip(tiles, inverse.unbind(), codec.tiles(codes), strict=True):
        scaled = torch.mul(tile if plain else room.copy_(tile), factor, out=room).clamp_(-limit, limit)
        target.copy_(scaled.add_(ROUNDING).view(torch.int32) if whole else scaled)


@torch.inference_mode()
def decode_cpu(codec: BlockCodec, blocks: Tensor, pages: Tensor) -> None:
    """decode_plain a tile at a time, in cache and in this thread."""
    codes, scales = codec.parts(blocks)
    fp8, plain = codec.format.dtype == torch.float8_e4m3fn, codec.dtype == torch.float32
    room, bits = codec.room.floats, codec.room.bits
    factors = scales.float().view(-1, len(room), 1)
    if fp8:
        factors *= 256.0
    tiles = zip(
        codec.tiles(codes.view(torch.int8)), factors.unbind(), pages.view(-1, *room.shape).unbind(), strict=True
    )
    for tile, factor, page in tiles:
        values = room.copy_(_half_of_e4m3(tile, bits) if fp8 else tile)
        if plain:
            torch.mul(values, factor, out=page)
        else:
            page.copy_(values.mul_(factor))


def _half_of_e4m3(codes: Tensor, bits: Tensor) -> Tensor:
    """e4m3 codes, given as int8, as float16 of a 256th of their values; torch's own conversion takes five times longer.

    Sign, exponent and mantissa go where float16 has them; its exponent counts from 15 instead of 7, hence the 256.
    Subnormals come out right. e4m3's NaNs come out as 480: no encoder writes one, but beside a scale that is NaN.
    """
    return bits.copy_(codes).bitwise_left_shift_(7).bitwise_and_(~0x4000).view(torch.float16)


def _bfloat16_below(value: float) -> float:
    bits = torch.tensor(value, dtype=torch.float32).view(torch.int32) & ~0xFFFF
    return bits.view(torch.float32).item()
