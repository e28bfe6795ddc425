"""The wire contract, the block layout and the namespace. Imports nothing of ours."""

from .layout import DTYPE_BYTES, PAGE_BYTES, BlockLayout, FieldError
from .namespace import Namespace

__all__ = ["DTYPE_BYTES", "PAGE_BYTES", "BlockLayout", "FieldError", "Namespace"]
