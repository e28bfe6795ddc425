"""The wire contract, the block layout, the namespace and retention. Imports nothing of ours."""

from .layout import DTYPE_BYTES, KV_CODECS, PAGE_BYTES, BlockLayout, FieldError
from .namespace import Namespace
from .retention import DEFAULT_RETENTION, Retention, RetentionRange

__all__ = [
    "DEFAULT_RETENTION",
    "DTYPE_BYTES",
    "KV_CODECS",
    "PAGE_BYTES",
    "BlockLayout",
    "FieldError",
    "Namespace",
    "Retention",
    "RetentionRange",
]
