"""Hbm: which blocks the engines have in their own memory, as they report it. One tree for each session.

An engine names its blocks by numbers of its own and sends their token ids; the keys are made here, from the namespace
as this store knows it (salted), and only when somebody wants them. What an engine says is bounded, and believed for
its own session alone: nobody is ever served a block because of it. Used on the store's loop.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ...radix import TOKEN_BYTES, PrefixIndex
from ..types import HbmChange

MAX_BLOCKS = 1 << 20  # of one session; about 200 bytes each
MAX_ALL_BLOCKS = 1 << 22  # of all sessions
MAX_NUMBER = 1 << 24
TIER = "hbm"


@dataclass(frozen=True, slots=True)
class Engine:
    """Whose memory: the session, and the name it gave."""

    session: int = 0
    name: str = ""


class HbmWatcher(Protocol):
    """As watch.Watcher, with whose memory it is."""

    def hbm_stored(
        self, engine: Engine, fingerprint: bytes, first: int, keys: Sequence[bytes], parent: bytes, tokens: bytes
    ) -> None: ...
    def hbm_removed(self, engine: Engine, fingerprint: bytes, keys: Sequence[bytes]) -> None: ...


class Space(Protocol):
    """The namespace of a session."""

    @property
    def fingerprint(self) -> bytes: ...
    @property
    def block_tokens(self) -> int: ...


class Hbm:
    """The views of all sessions. dropped: blocks that engines reported beyond the bounds, or below unknown ones."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._views: dict[int, View] = {}
        self._watcher: HbmWatcher | None = None
        self.dropped = 0

    @property
    def blocks(self) -> int:
        """Of all sessions together."""
        return sum(len(view.index) for view in self._views.values())

    def report(
        self, engine: Engine, space: Space, hash_name: str, changes: Sequence[HbmChange], *, whole: bool
    ) -> None:
        """What a session says. whole: it begins anew. ValueError for what makes no sense."""
        view = self._views.get(engine.session)
        if view is None:
            view = self._views[engine.session] = View(engine, space, hash_name, self._clock)
        if whole:
            self._clear(view)
        for change in changes:
            if change.tokens:
                self._store(view, change)
            else:
                self._remove(view, change.numbers)

    def end(self, session: int) -> None:
        """The session is over, and what its engine has is nobody's business any more."""
        view = self._views.pop(session, None)
        if view is not None:
            self._clear(view)

    def held(self, fingerprint: bytes, tokens: bytes) -> list[tuple[Engine, int]]:
        """How many tokens of a prompt each engine of that namespace has, those with none included."""
        return [
            (view.engine, view.index.match(tokens).tokens)
            for view in self._views.values()
            if view.fingerprint == fingerprint
        ]

    def holders(self, fingerprint: bytes, key: bytes, *, but: int) -> bool:
        """Whether an engine other than session `but` has the block of that key. Only while watched."""
        return any(
            view.engine.session != but and view.fingerprint == fingerprint and view.has(key)
            for view in self._views.values()
        )

    def watch(self, watcher: HbmWatcher) -> Callable[[], None]:
        """Tell it of everything that is here, and of each change from now on, until what this returns is called. There
        is one watcher at a time. Hashes every block that was not hashed yet."""
        assert self._watcher is None, "somebody watches already"
        self.tell_all(watcher)
        self._watcher = watcher

        def end() -> None:
            self._watcher = None
            for view in self._views.values():
                view.keys.clear()

        return end

    def tell_all(self, watcher: HbmWatcher) -> None:
        """Tell it of everything that is here, once."""
        for view in self._views.values():
            for blocks, first, above, tokens in view.index.runs():
                keys, parent = view.keys_of(blocks, above)
                view.keys.update(keys)
                watcher.hbm_stored(view.engine, view.fingerprint, first, keys, parent, tokens)

    def check(self) -> None:
        """AssertionError unless the views agree with themselves; for tests."""
        for view in self._views.values():
            view.check()

    def _store(self, view: "View", change: HbmChange) -> None:
        view.check_stored(change)
        above = view.block_of(change.parent)
        known = change.parent < 0 or above >= 0
        room = min(MAX_BLOCKS - len(view.index), MAX_ALL_BLOCKS - self.blocks)
        if not known or len(change.numbers) > room:
            self.dropped += len(change.numbers)
            return
        self._remove(view, change.numbers)  # a number that is given anew means nothing else any more
        above = view.block_of(change.parent)
        if change.parent >= 0 and above < 0:
            self.dropped += len(change.numbers)
            return
        blocks, first = view.add(change, above)
        if self._watcher is not None:
            keys, parent = view.keys_of(blocks, above)
            view.keys.update(keys)
            self._watcher.hbm_stored(view.engine, view.fingerprint, first, keys, parent, change.tokens)

    def _remove(self, view: "View", numbers: NDArray[np.uint32]) -> None:
        gone = list(view.drop(numbers))
        if not gone or self._watcher is None:
            return
        keys = [key for blocks in gone for key in view.index.known_keys(blocks)]
        view.keys.difference_update(keys)
        self._watcher.hbm_removed(view.engine, view.fingerprint, keys)

    def _clear(self, view: "View") -> None:
        if len(view.index):
            gone = list(view.keys)
            view.clear(self._clock)
            if self._watcher is not None:
                self._watcher.hbm_removed(view.engine, view.fingerprint, gone)


class View:
    """What one session's engine has: the engine's numbers are the payload of a tree of ours. keys: of all blocks, while
    somebody watches."""

    def __init__(self, engine: Engine, space: Space, hash_name: str, clock: Callable[[], float]) -> None:
        self.engine = engine
        self.fingerprint = space.fingerprint
        self.block_tokens = space.block_tokens
        self.hash_name = hash_name
        self.keys: set[bytes] = set()
        self.clear(clock)

    def clear(self, clock: Callable[[], float]) -> None:
        self.index = PrefixIndex(
            self.fingerprint, block_tokens=self.block_tokens, hash_name=self.hash_name, clock=clock
        )
        self._block: NDArray[np.int32] = np.empty(0, dtype=np.int32)  # ours, by the engine's number; -1: none
        self.keys.clear()

    def has(self, key: bytes) -> bool:
        return key in self.keys

    def block_of(self, number: int) -> int:
        return int(self._block[number]) if 0 <= number < len(self._block) else -1

    def check_stored(self, change: HbmChange) -> None:
        """ValueError unless it can be."""
        count = len(change.numbers)
        if count == 0 or count * self.block_tokens * TOKEN_BYTES != len(change.tokens):
            raise ValueError(f"{len(change.tokens)} bytes of tokens are not those of {count} blocks")
        if int(change.numbers.max()) >= MAX_NUMBER or len(np.unique(change.numbers)) != count:
            raise ValueError(f"block numbers must differ and be below {MAX_NUMBER}")

    def add(self, change: HbmChange, above: int) -> tuple[NDArray[np.int32], int]:
        """The blocks, and the ordinal of the first of them."""
        first = self.index.depth(above) + 1 if above >= 0 else 0
        prefix = self.index.tokens_to(above) if above >= 0 else b""
        done = self.index.insert(prefix + change.tokens, change.numbers.astype(np.int64), skip=first)
        highest = int(change.numbers.max())
        if highest >= len(self._block):
            grown = np.full(max(1024, 2 * len(self._block), highest + 1), -1, dtype=np.int32)
            grown[: len(self._block)] = self._block
            self._block = grown
        blocks = done.blocks[first:]
        self._block[change.numbers] = blocks
        return blocks, first

    def drop(self, numbers: NDArray[np.uint32]) -> Iterator[NDArray[np.int32]]:
        """Blocks that are gone, with all that hung below them."""
        known = numbers[numbers < len(self._block)]
        # An engine frees tips first: from the other end, one removal takes a whole run.
        for number in known[::-1].tolist():
            block = int(self._block[number])
            if block < 0:
                continue
            removed = self.index.remove(block)
            self._block[removed.values] = -1
            self._block[number] = -1  # another number's block may have been the same
            yield removed.blocks

    def keys_of(self, blocks: NDArray[np.int32], above: int) -> tuple[list[bytes], bytes]:
        """Keys of a run, and that of the block above it."""
        self.index.key(int(blocks[-1]))  # with those above
        parent = self.index.key(above) if above >= 0 else self.fingerprint
        return self.index.known_keys(blocks), parent

    def check(self) -> None:
        self.index.check()
        numbers = np.flatnonzero(self._block >= 0)
        live = set(self.index.iterate())
        assert {int(self._block[number]) for number in numbers} == live, "numbers and blocks differ"
