"""Runs: blocks of one prompt that follow each other, which one question can ask for, and what a peer may offer of them.

Pure. An offer is believed only where it says what was asked: keys, block size, and no more blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...proto import kv_pb2 as pb
from ..tiers import Wanted
from .client import PeerError

MAX_BLOCKS = 4096  # of a run; what a holder lends at once
_TOKEN_BYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """at: place of its first block in the batch that was asked for."""

    at: int
    blocks: Sequence[Wanted]

    @property
    def first(self) -> int:
        """Ordinal of its first block."""
        return self.blocks[0].ordinal

    @property
    def block_bytes(self) -> int:
        return self.blocks[0].block_bytes

    @property
    def size_bytes(self) -> int:
        return len(self.blocks) * self.block_bytes

    @property
    def tokens(self) -> bytes:
        """From the prompt's first to the end of the last block."""
        last = self.blocks[-1]
        return last.prompt[: (last.ordinal + 1) * len(last.tokens)]

    def views(self, count: int) -> list[memoryview]:
        """Where the bytes of the first `count` blocks go."""
        return [each.into[: each.block_bytes].data for each in self.blocks[:count]]

    def checksums(self, offer: pb.Offer) -> list[int]:
        """Of the blocks that were offered, the run's first ones. PeerError for what cannot be an answer to this run."""
        if offer.count > len(self.blocks):
            raise PeerError("protocol", f"{offer.count} blocks where {len(self.blocks)} were asked for")
        if not offer.count:
            return []
        if offer.block_bytes != self.block_bytes:
            raise PeerError("protocol", f"blocks of {offer.block_bytes} bytes, not {self.block_bytes}")
        if offer.keys != b"".join(each.key for each in self.blocks[: offer.count]):
            raise PeerError("protocol", "keys of other blocks")
        if len(offer.checksums) != 8 * offer.count:
            raise PeerError("protocol", f"{len(offer.checksums)} bytes of checksums for {offer.count} blocks")
        return np.frombuffer(offer.checksums, "<u8").tolist()


def runs_of(wanted: Sequence[Wanted]) -> list[Run]:
    """Cut a batch into runs. Left out is what no peer can find: without a prompt, or with one that says otherwise."""
    runs: list[Run] = []
    blocks: list[Wanted] = []
    for at, each in enumerate(wanted):
        if not _sound(each):
            blocks = []
        elif blocks and len(blocks) < MAX_BLOCKS and _follows(blocks[-1], each):
            blocks.append(each)
        else:
            blocks = [each]
            runs.append(Run(at, blocks))
    return runs


def _sound(each: Wanted) -> bool:
    size = len(each.tokens)
    if not size or size % _TOKEN_BYTES or each.ordinal < 0 or not 0 < each.block_bytes <= each.into.nbytes:
        return False
    return each.prompt[each.ordinal * size : (each.ordinal + 1) * size] == each.tokens


def _follows(before: Wanted, each: Wanted) -> bool:
    """Whether `each` is the next block of the same prompt."""
    return (
        each.ordinal == before.ordinal + 1
        and each.parent == before.key
        and (each.fingerprint, each.block_bytes, len(each.tokens))
        == (before.fingerprint, before.block_bytes, len(before.tokens))
        and each.prompt == before.prompt
    )
