"""BlockLayout: how the bytes of one block are ordered, the same in HBM, arena, segment and on the wire.

A block is `[kv_heads][layers][planes][block_tokens][head_dim]`, contiguous, head-major: a range of heads is a
contiguous range of bytes. Immutable; checked when made.

A dtype such as `float32+int8` says that a lossy codec stands between the engine's float32 and the bytes. A block then
is `kv_heads` times (`[layers][planes][block_tokens][head_dim]` codes of one byte, then `[layers][planes][block_tokens]`
scales, bfloat16 little-endian), an element being code times scale; a range of heads is still a range of bytes. Codes of
`int8` are two's complement, those of `fp8` are float8_e4m3fn. The dtype is part of the identity: lossy and exact bytes
never mix, nor do those of two codecs.
"""

from dataclasses import dataclass

PAGE_BYTES = 4096  # slots are aligned to it, so that O_DIRECT reads and sockets can fill them
MAX_BLOCK_BYTES = 1 << 30
MAX_BLOCK_TOKENS = 1024

KV_CODECS = ("fp8", "int8")  # lossy; another format of the bytes is another name
SCALE_BYTES = 2

# Bytes of one element as it is stored; the names are torch's, and those of what a codec makes of a torch dtype.
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1} | {
    f"{dtype}+{codec}": 1 for dtype in ("float32", "float16", "bfloat16") for codec in KV_CODECS
}


class FieldError(ValueError):
    """A value that a layout or namespace cannot have; `field` names which."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Geometry of one block. FieldError names the field that is wrong.

    kv_heads:     KV heads stored (1 for MLA-style latents).
    layers:       layers stored, consecutive.
    planes:       2 = keys then values; 1 = one latent plane.
    block_tokens: tokens in a block.
    head_dim:     elements per token, head, layer and plane.
    dtype:        element type, a name of DTYPE_BYTES; with a codec, the engine's and the codec's: float32+int8.
    """

    kv_heads: int
    layers: int
    planes: int
    block_tokens: int
    head_dim: int
    dtype: str

    def __post_init__(self) -> None:
        for name in ("kv_heads", "layers", "planes", "block_tokens", "head_dim"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise FieldError(name, f"must be a whole number above 0, not {value!r}")
        if self.planes > 2:
            raise FieldError("planes", f"must be 1 (one latent) or 2 (keys, values), not {self.planes}")
        if self.block_tokens > MAX_BLOCK_TOKENS:
            raise FieldError("block_tokens", f"must be at most {MAX_BLOCK_TOKENS}, not {self.block_tokens}")
        if self.dtype not in DTYPE_BYTES:
            raise FieldError("dtype", f"must be one of {', '.join(DTYPE_BYTES)}, not {self.dtype!r}")
        if self.codec and self.layers * self.planes * self.block_tokens * self.head_dim % 2:
            raise FieldError(
                "head_dim", f"must be even for {self.dtype}, whose scales need two bytes, not {self.head_dim}"
            )
        if self.block_bytes > MAX_BLOCK_BYTES:
            raise FieldError("block_bytes", f"a block of {self.block_bytes} bytes is above {MAX_BLOCK_BYTES}")

    @property
    def shape(self) -> tuple[int, int, int, int, int]:
        """(kv_heads, layers, planes, block_tokens, head_dim)."""
        return self.kv_heads, self.layers, self.planes, self.block_tokens, self.head_dim

    @property
    def element(self) -> str:
        """The dtype of the engine's pages: `float32` for both `float32` and `float32+int8`."""
        return self.dtype.partition("+")[0]

    @property
    def codec(self) -> str:
        """The lossy codec that the bytes went through, one of KV_CODECS; "" = none, a block is a page's very bytes."""
        return self.dtype.partition("+")[2]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block's payload, scales included."""
        rows = self.kv_heads * self.layers * self.planes * self.block_tokens
        return rows * (self.head_dim * DTYPE_BYTES[self.dtype] + (SCALE_BYTES if self.codec else 0))

    @property
    def slot_bytes(self) -> int:
        """Bytes of the slot that holds one block: block_bytes rounded up to whole pages of 4096."""
        return -(-self.block_bytes // PAGE_BYTES) * PAGE_BYTES
