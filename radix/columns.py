"""Columns: per-block facts in numpy arrays indexed by block number, and the allocator of these numbers.

Numbers are dense and reused, last freed first. Arrays grow by a quarter when numbers run out, which is a copy: an
array taken from here is good only until the next allocation.
"""

from array import array
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_FIRST_CAPACITY = 256


class Columns:
    """Named one-dimensional columns of one length. `columns["hits"][blocks]` reads; assignment in place writes."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}
        self._fills: dict[str, Any] = {}
        self._capacity = 0
        self._used = 0  # numbers ever given out: 0 .. _used - 1
        self._free = array("i")

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._arrays[name]

    @property
    def numbers(self) -> int:
        """One more than the highest block number given out so far."""
        return self._used

    def add(self, name: str, dtype: DTypeLike, fill: Any) -> None:
        """A new column; a block gets `fill` when its number is allocated, or whatever if that is None, for a column
        whose owner writes every new block. ValueError if the name is taken."""
        if name in self._arrays:
            raise ValueError(f"there is a column {name!r} already")
        self._arrays[name] = np.full(self._capacity, 0 if fill is None else fill, dtype=dtype)
        if fill is not None:
            self._fills[name] = fill

    def allocate(self, count: int) -> NDArray[np.int32]:
        """`count` block numbers with every column at its fill; amortised O(count)."""
        reused = min(count, len(self._free))
        numbers = np.empty(count, dtype=np.int32)
        if reused:
            numbers[:reused] = self._free[: -reused - 1 : -1]
            del self._free[-reused:]
            again = numbers[:reused].astype(np.intp)  # numpy takes five times as long by any other type of index
            for name, fill in self._fills.items():
                self._arrays[name][again] = fill
        if reused < count:
            numbers[reused:] = np.arange(self._used, self._used + count - reused, dtype=np.int32)
            self._used += count - reused
            if self._used > self._capacity:
                self._grow(max(_FIRST_CAPACITY, self._used + self._used // 4))
        return numbers

    def free(self, numbers: NDArray[np.int32]) -> None:
        """Give numbers back; their facts stay readable until the numbers are allocated again."""
        self._free.frombytes(numbers.tobytes())

    def _grow(self, capacity: int) -> None:
        for name, old in self._arrays.items():
            new = np.empty(capacity, dtype=old.dtype)
            new[: self._capacity] = old
            new[self._capacity :] = self._fills.get(name, 0)
            self._arrays[name] = new
        self._capacity = capacity

    def check(self, held: set[int]) -> None:
        """AssertionError unless free numbers and `held` ones are exactly all numbers, each once."""
        free = set(self._free)
        assert len(free) == len(self._free), "a block number was freed twice"
        assert not free & held, f"numbers both free and in use: {sorted(free & held)[:8]}"
        assert free | held == set(range(self._used)), "a block number is lost"
