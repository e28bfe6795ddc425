"""Each number of ConnectorStatus moves when that happens which it counts."""

import dataclasses
import threading
import time

import pytest
from kvterrace.connector.base import ConnectorStatus, Receipt
from kvterrace.connector.copiers import HostCopier

pytestmark = pytest.mark.unit


class Valve(HostCopier):
    """A copier whose loads wait until they are let through."""

    def __init__(self, pool):
        super().__init__(pool)
        self.open = threading.Event()

    def to_pages(self, source, page, fence):
        assert self.open.wait(10)
        return super().to_pages(source, page, fence)


class Watch:
    """Which numbers have been seen to move, against the status at the start."""

    def __init__(self, rig):
        self.rig, self.first, self.moved = rig, rig.connector.status(), set()

    def __call__(self, *names, within_s=5.0):
        end = time.monotonic() + within_s
        while still := {
            name for name in names if getattr(self.rig.connector.status(), name) == getattr(self.first, name)
        }:
            assert time.monotonic() < end, f"not moved: {still}"
            time.sleep(0.002)
        self.moved.update(names)


def test_each_number_of_a_connector_moves(make_rig, tokens):
    rig = make_rig(acquire_deadline_s=0.2, save_deadline_s=0.2)
    watch, prompt = Watch(rig), tokens(16)
    rig.saved(prompt, range(4))
    watch("saves", "saved_blocks", "saved_bytes")
    assert rig.fetch("a", prompt, 0, 4).blocks == 4
    assert rig.load("a", range(20, 24)).blocks_ok == 4
    watch("fetches", "loads", "loaded_blocks", "loaded_bytes", "load_seconds")
    rig.fetch("b", tokens(16, seed=2), 0, 4)
    watch("misses")
    assert rig.connector.prefetch("c", tokens(16, seed=3), 0)
    watch("prefetches", "prefetches_in_flight")
    rig.connector.save("d", tokens(16, seed=9), 2, range(2))  # its beginning is not in the store
    watch("dropped_saves")

    rig.client.arena.block(rig.slot_of(prompt, 1))[3] ^= 1
    assert rig.fetch("e", prompt, 0, 4).blocks == 4
    assert rig.load("e", range(30, 34)).reason == "corrupt"
    watch("corrupt_blocks", "failures")

    rig.client.hangs |= {"acquire", "reserve"}
    rig.connector.fetch("f", tokens(16, seed=4), 0, 4)
    rig.connector.save("g", tokens(16, seed=5), 0, range(2))
    watch("fetches_in_flight", "save_bytes_in_flight")
    rig.connector.served(Receipt("r", {}))
    watch("receipts")
    rig.client.away = True
    rig.connector.served(Receipt("s", {}))
    watch("connected", "dropped_receipts")
    valve = Valve(rig.pool)
    rig.client.away, rig.client.hangs = False, set()
    rig.saved(tokens(16, seed=6), range(4))
    rig.connector._worker.copier = valve
    rig.fetch("h", tokens(16, seed=6), 0, 4)
    rig.connector.load("h", range(40, 44))
    watch("loads_in_flight")
    valve.open.set()
    assert watch.moved == {field.name for field in dataclasses.fields(ConnectorStatus)} - {"kind"}
