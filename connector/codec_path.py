"""CodecPath: what a save and a load through a codec leave of an engine's pages, without a store in between."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from .copiers import make_copier
from .factory import Model, namespace_of


class CodecPath:
    """The copies of a connector with this codec ("none": exact) over a pool [num_pages, ...]; for measuring it.

    slot_bytes: what a block takes in DRAM, alignment included. FieldError (a ValueError) for an unknown codec.
    """

    def __init__(self, pool: Tensor, codec: str) -> None:
        layout = namespace_of(pool, Model(bytes(32), kv_codec=codec)).layout
        self.slot_bytes = layout.slot_bytes
        self._block_bytes = layout.block_bytes
        self._pool = pool
        self._copier = make_copier(pool, layout)

    def round_trip(self, pages: int) -> None:
        """Save the first `pages` pages, and load them back over themselves."""
        slots = np.empty((pages, self._block_bytes), dtype=np.uint8)
        self._copier.to_slots(0, slots, self._copier.fence())
        self._pool[:pages].zero_()
        self._copier.to_pages(slots, 0, self._copier.fence())
