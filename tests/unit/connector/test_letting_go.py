"""A store that is gone gets its memory back at once: its next start may have room for one arena only."""

import gc
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from kvterrace.connector.copiers import HostCopier
from kvterrace.connector.worker import CopyThreads, Transfer, Worker
from kvterrace.kvstore.arena import Arena
from kvterrace.kvstore.types import SlotRef

pytestmark = pytest.mark.unit

BLOCK_BYTES = 4096


@dataclass(eq=False)
class Caller:
    """Who began a transfer and is told of its end; knows its job, as the scheduler's cycles do."""

    job: Any = None
    told: Any = None


@pytest.mark.parametrize("way", ["load", "save"])
def test_a_transfer_that_ended_keeps_no_arena(way: str) -> None:
    owner = Arena.anonymous(64 * BLOCK_BYTES)
    threads = CopyThreads(1)
    worker = Worker(HostCopier(torch.zeros(8, BLOCK_BYTES, dtype=torch.uint8)), threads, lambda: 0.0)
    gc.disable()  # cycles are not looked for while nothing is allocated, as in an idle engine
    try:
        caller, over = Caller(), threading.Event()
        arena = owner.view(BLOCK_BYTES, BLOCK_BYTES)
        gone = weakref.ref(arena)
        transfer = Transfer((SlotRef(0, 0, 0),), (1,), arena, None, 1.0)
        del arena

        def done(result: Any, caller: Caller = caller) -> None:
            caller.told = result
            over.set()

        caller.job = (worker.load if way == "load" else worker.save)(transfer, done)
        del transfer, done
        assert over.wait(10)
        told = caller.told
        del caller
        threads.close()  # its thread has let go of the job, too
        assert told is not None
        assert gone() is None
    finally:
        gc.enable()
        worker.close()
        owner.close()
