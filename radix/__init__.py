"""The prefix index: keys, the radix tree over token blocks, leases on paths, eviction order."""

from .adaptive import Adaptive
from .branch import Branch
from .gdsf import Gdsf
from .index import PrefixIndex
from .keys import HASH_BYTES, SEED_BYTES, Extras, block_keys
from .lru import Lru
from .policy import EvictionPolicy, LeafView
from .replicas import Replicated
from .results import Insertion, Match, Removals, Removed, Snapshot
from .retained import Retained
from .retention import Retentions
from .s3fifo import S3Fifo
from .tokens import TOKEN_BYTES, pack_tokens, unpack_tokens

__all__ = [
    "HASH_BYTES",
    "SEED_BYTES",
    "TOKEN_BYTES",
    "Adaptive",
    "Branch",
    "EvictionPolicy",
    "Extras",
    "Gdsf",
    "Insertion",
    "LeafView",
    "Lru",
    "Match",
    "PrefixIndex",
    "Removals",
    "Removed",
    "Replicated",
    "Retained",
    "Retentions",
    "S3Fifo",
    "Snapshot",
    "block_keys",
    "pack_tokens",
    "unpack_tokens",
]
