"""Copies between pages and slots: byte-exact, verified, ended exactly once, whatever happens to the slots."""

from __future__ import annotations

import queue
import time

import numpy as np
import pytest
import torch
import xxhash
from kvterrace.connector.copiers import HostCopier, page_rows
from kvterrace.connector.worker import CopyThreads, LoadResult, SaveResult, Transfer, Worker, cut
from kvterrace.kvstore.arena import Arena, ArenaView
from kvterrace.kvstore.types import SlotRef

pytestmark = pytest.mark.unit

BLOCK_BYTES = 2 * 3 * 2 * 4 * 8 * 4  # of the pools below: 1,536, so that slots are longer than blocks
SLOT_BYTES = 4096
NEVER = float("inf")


class Rig:
    """An arena of 32 slots, a pool of 32 pages and a worker between them."""

    def __init__(self, chunk_bytes: int = 4 * BLOCK_BYTES) -> None:
        self.arena = Arena.anonymous(32 * SLOT_BYTES)
        self.view: ArenaView = self.arena.view(BLOCK_BYTES, SLOT_BYTES)
        self.pool = torch.zeros((32, 2, 3, 2, 4, 8), dtype=torch.float32)
        self.pages = page_rows(self.pool).numpy()
        self.copier = HostCopier(self.pool)
        self.copier.chunk_bytes = chunk_bytes
        self.now = 0.0
        self.threads = CopyThreads(2)
        self.worker = Worker(self.copier, self.threads, lambda: self.now)
        self.results: queue.Queue[LoadResult | SaveResult] = queue.Queue()

    def fill(self, slots: list[int], seed: int = 1) -> list[SlotRef]:
        rng = np.random.default_rng(seed)
        refs = []
        for slot in slots:
            block = self.view.block(slot)
            block[:] = rng.integers(0, 256, SLOT_BYTES, dtype=np.uint8)
            refs.append(SlotRef(slot, self.view.generation(slot), xxhash.xxh3_64_intdigest(block[:BLOCK_BYTES])))
        return refs

    def load(self, refs: list[SlotRef], pages: list[int], deadline: float = NEVER) -> LoadResult:
        assert self.worker.load(Transfer(refs, pages, self.view, None, deadline), self.results.put) is not None
        result = self.results.get(timeout=10)
        assert isinstance(result, LoadResult)
        return result

    def save(self, refs: list[SlotRef], pages: list[int]) -> SaveResult:
        assert self.worker.save(Transfer(refs, pages, self.view, None, NEVER), self.results.put) is not None
        result = self.results.get(timeout=10)
        assert isinstance(result, SaveResult)
        return result

    def close(self) -> None:
        self.worker.close()
        self.arena.close()


@pytest.fixture
def rig():
    rig = Rig()
    yield rig
    rig.close()


@pytest.mark.parametrize(
    ("slots", "pages"),
    [
        ([3], [7]),
        ([4, 5, 6, 7, 8, 9], [10, 11, 12, 13, 14, 15]),  # one run, cut by the chunk size
        ([9, 2, 3, 30, 1, 0], [0, 31, 5, 6, 7, 2]),  # slots and pages break at different places
        (list(range(32)), list(reversed(range(32)))),
    ],
)
def test_a_load_brings_every_byte_and_touches_nothing_else(rig: Rig, slots: list[int], pages: list[int]):
    refs = rig.fill(slots)
    assert rig.load(refs, pages) == LoadResult(len(slots), (), "")
    for slot, page in zip(slots, pages, strict=True):
        assert np.array_equal(rig.pages[page], rig.view.block(slot)[:BLOCK_BYTES])
    others = sorted(set(range(32)) - set(pages))
    assert not rig.pages[others].any()


def test_what_was_saved_from_a_tensor_is_read_back_as_that_tensor(rig: Rig):
    pages, slots, back = [3, 4, 9, 1], [20, 6, 7, 8], [12, 30, 14, 15]
    rig.pool[pages] = torch.randn(4, 2, 3, 2, 4, 8)
    saved = rig.save([SlotRef(slot, 0, 0) for slot in slots], pages)
    assert saved.reason == ""
    refs = [SlotRef(slot, 0, checksum) for slot, checksum in zip(slots, saved.checksums, strict=True)]
    assert rig.load(refs, back).blocks_ok == 4
    assert torch.equal(rig.pool[back], rig.pool[pages])


def test_the_first_flipped_bit_ends_the_good_blocks_and_is_named(rig: Rig):
    refs = rig.fill(list(range(12)))
    rig.view.block(5)[100] ^= 1
    result = rig.load(refs, list(range(12)))
    assert (result.blocks_ok, result.reason) == (5, "corrupt")
    assert result.corrupt == (5,)


def test_bytes_behind_the_block_in_its_slot_do_not_matter(rig: Rig):
    refs = rig.fill([2])
    rig.view.block(2)[BLOCK_BYTES] ^= 1
    assert rig.load(refs, [0]).blocks_ok == 1


def test_a_slot_freed_since_the_lease_is_stale_and_not_called_corrupt(rig: Rig):
    refs = rig.fill(list(range(6)))
    rig.arena.free_slots(np.array([2], dtype=np.int64))
    rig.view.block(2)[:] = 0
    result = rig.load(refs, list(range(6)))
    assert result == LoadResult(2, (), "stale")


def test_a_save_never_writes_into_a_slot_it_no_longer_owns(rig: Rig):
    refs = rig.fill([4])
    before = rig.view.block(4).copy()
    rig.arena.free_slots(np.array([4], dtype=np.int64))
    rig.pool.fill_(7.0)
    assert rig.save(refs, [1]) == SaveResult((), "stale")
    assert np.array_equal(rig.view.block(4), before)


def test_a_load_past_its_deadline_ends_without_touching_a_page(rig: Rig):
    refs = rig.fill([0, 1])
    rig.now = 5.0
    assert rig.load(refs, [0, 1], deadline=5.0) == LoadResult(0, (), "deadline")
    assert not rig.pages.any()


def test_a_mapping_that_the_client_let_go_of_is_a_short_load(rig: Rig):
    refs = rig.fill([0, 1])
    rig.view.close()
    assert rig.load(refs, [0, 1]) == LoadResult(0, (), "disconnected")


def test_an_unexpected_failure_is_a_short_load_and_the_threads_live_on(rig: Rig):
    refs = rig.fill([0, 1])
    assert rig.load(refs, [0, 99]).reason == "error"  # there is no page 99
    assert rig.load(refs, [0, 1]) == LoadResult(2, (), "")


class SlowCopier(HostCopier):
    def to_pages(self, source, page, fence):
        time.sleep(0.02)
        return super().to_pages(source, page, fence)

    def to_slots(self, page, target, fence):
        time.sleep(0.02)
        return super().to_slots(page, target, fence)


def test_loads_overtake_saves_that_wait(rig: Rig):
    slow = SlowCopier(rig.pool)
    slow.chunk_bytes = BLOCK_BYTES
    worker = rig.worker.with_copier(slow)
    refs = rig.fill(list(range(16)))
    order: queue.Queue[str] = queue.Queue()
    worker.save(Transfer(refs, list(range(16)), rig.view, None, NEVER), lambda _: order.put("save"))
    worker.load(Transfer(refs[:1], [20], rig.view, None, NEVER), lambda _: order.put("load"))
    assert [order.get(timeout=10), order.get(timeout=10)] == ["load", "save"]


def test_cancel_and_close_end_a_load_once_and_early(rig: Rig):
    slow = SlowCopier(rig.pool)
    slow.chunk_bytes = BLOCK_BYTES
    worker = rig.worker.with_copier(slow)
    refs = rig.fill(list(range(32)))
    cancelled = worker.load(Transfer(refs, list(range(32)), rig.view, None, NEVER), rig.results.put)
    assert cancelled is not None
    cancelled.cancel()
    assert rig.results.get(timeout=10).reason == "cancelled"
    worker.load(Transfer(refs, list(range(32)), rig.view, None, NEVER), rig.results.put)
    worker.close()
    assert rig.results.get(timeout=1).reason == "cancelled"
    assert worker.load(Transfer(refs, list(range(32)), rig.view, None, NEVER), rig.results.put) is None
    assert rig.results.empty()


def test_runs_break_where_slots_or_pages_do():
    slots = [SlotRef(slot, 0, 0) for slot in (0, 2, 4, 8, 10, 12)]
    chunks = cut(slots, [5, 6, 7, 8, 20, 21], 2, 100)
    assert [(c.start, c.stop) for c in chunks] == [(0, 3), (3, 4), (4, 6)]
    assert [(c.start, c.stop) for c in cut(slots[:3], [5, 6, 7], 2, 2)] == [(0, 2), (2, 3)]
