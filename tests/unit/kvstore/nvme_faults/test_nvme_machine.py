"""Random histories of the NVMe tier on a disk that forgets what it may, against a plain dict.

The dict knows for each block what the tier owes: to have it, not to have it, or either. kill -9 costs nothing that was
answered Stored; a power cut costs what was not flushed, and never a cleared block comes back. Damage behind the tier's
back turns blocks into misses, never into other bytes. Caps hold at every moment: the disk keeps the peak.
"""

import asyncio
import dataclasses
import enum
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kvterrace.kvstore.security.keyring import make
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Rejected, Stored
from kvterrace.kvstore.tiers.codec import PlanesLz4, RawCodec
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import Retention

from .blocks import NAMESPACES, block_bytes, fingerprint, is_right, key, record, retention, tokens, wanted
from .disk import PAGE, MemoryDisk

pytestmark = pytest.mark.unit

WHERE = Path("/disk")
SEGMENT_BYTES = 32 * PAGE
CAPACITY_BYTES = 8 * SEGMENT_BYTES
MIN_FREE_BYTES = SEGMENT_BYTES
DAILY_BYTES = 24 * SEGMENT_BYTES
DAY_S = 86_400.0
DEADLINE_S = 20.0
PRIORITIES = (3, 97)
CODECS = (RawCodec(), PlanesLz4())
TENANTS = {fingerprint(number): f"tenant{number}" for number in range(NAMESPACES)}
KEYS = make({tenant: [tenant[-1] * 64] for tenant in TENANTS.values()}, "test")
WAIT_S = 60.0  # for a verb: beyond it, it hangs

numbers = st.integers(0, 79)
batches = st.lists(numbers, min_size=1, max_size=12, unique=True)


class Owed(enum.Enum):
    HAVE = "have"
    ABSENT = "absent"
    EITHER = "either"


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.owed: dict[int, Owed] = {}
        self.flushed: set[int] = set()
        self.kept: dict[int, set[Retention]] = {}  # what may be said of a block's retention
        self.before: dict[int, set[Retention]] = {}  # what was, before changes that were not flushed
        self.suspect: set[int] = set()  # perhaps damaged: what says that it is there may find out that it is not
        self.tier: NvmeTier | None = None
        self.now = 1000.0

    @initialize(codec=st.sampled_from(CODECS), what=st.tuples(*[st.booleans()] * 4))
    def start(self, codec, what) -> None:
        """tight: the disk is no larger than the cap, so that min_free_bytes stops the tier. frail: bits flip."""
        budget, tight, frail, encrypted = what
        self.keys = KEYS if encrypted else None
        self.codec = codec
        self.frail = frail
        self.disk = MemoryDisk(CAPACITY_BYTES if tight else 1 << 40)
        self.path = NvmePath(WHERE, CAPACITY_BYTES, MIN_FREE_BYTES, DAILY_BYTES if budget else 0)
        self._open()

    @rule(batch=batches)
    def put(self, batch) -> None:
        answers = self._run(self.tier.put([record(number) for number in batch], deadline_s=DEADLINE_S))
        for number, answer in zip(batch, answers, strict=True):
            if answer == Stored():
                if self._owes(number) is Owed.ABSENT:
                    self.before[number] = self.before.get(number, set()) | self._kept(number)
                    self.kept[number] = {retention(number)}
                if self._owes(number) is not Owed.HAVE:
                    self.kept[number] = self._kept(number) | {retention(number)}
                    self.flushed.discard(number)
                self.owed[number] = Owed.EITHER if number in self.suspect else Owed.HAVE
            else:
                assert isinstance(answer, Rejected), answer
                assert answer.reason in {"full", "budget", "busy"}, answer
                assert self._owes(number) is not Owed.HAVE, "a block that is there is Stored again"

    @rule(batch=batches, priority=st.sampled_from(PRIORITIES))
    def replace(self, batch, priority) -> None:
        """The same blocks with another retention; until a flush a power cut may bring the old one back."""
        records = [dataclasses.replace(record(each), retention=Retention(priority), replace=True) for each in batch]
        for number, answer in zip(batch, self._run(self.tier.put(records, deadline_s=DEADLINE_S)), strict=True):
            if answer == Stored():
                self.before[number] = self.before.get(number, set()) | self._kept(number)
                self.kept[number] = {Retention(priority)}
                if self._owes(number) is not Owed.HAVE:
                    self.flushed.discard(number)
                self.owed[number] = Owed.HAVE
            else:
                assert isinstance(answer, Rejected), answer

    @rule(batch=batches)
    def get(self, batch) -> None:
        self._get(batch)

    @rule(batch=batches)
    def drop(self, batch) -> None:
        for number, was in zip(batch, self._run(self.tier.drop([key(each) for each in batch])), strict=True):
            assert self._owes(number) is Owed.EITHER or was is (self._owes(number) is Owed.HAVE)
            self.owed[number] = Owed.ABSENT
            self.flushed.discard(number)

    @rule()
    def flush(self) -> None:
        assert self._run(self.tier.flush(deadline_s=DEADLINE_S)) is True
        self.before.clear()
        self.flushed = {number for number, owed in self.owed.items() if owed is Owed.HAVE}

    @rule(which=st.sampled_from([None, *range(NAMESPACES)]))
    def clear(self, which) -> None:
        gone = None if which is None else fingerprint(which)
        cleared = [number for number in self.owed if gone in (None, fingerprint(number))]
        least = sum(self.owed[number] is Owed.HAVE for number in cleared)
        most = sum(self.owed[number] is not Owed.ABSENT for number in cleared)
        assert least <= self._run(self.tier.clear(gone)) <= most
        for number in cleared:
            del self.owed[number]
            self.flushed.discard(number)
            self.suspect.discard(number)

    @rule(seconds=st.sampled_from([1.0, 3600.0, DAY_S]))
    def wait(self, seconds) -> None:
        self.now += seconds
        self._run(asyncio.sleep(0.002))

    @rule(codec=st.sampled_from(CODECS))
    def restart(self, codec) -> None:
        """With another configuration perhaps: what is there is read as it was written."""
        self._run(self.tier.close())
        assert not self.mount.handles
        self.codec = codec
        self._open()

    @rule()
    def kill(self) -> None:
        self.disk.crash(self.mount)
        self._run(self.tier.close())  # only to join its threads: nothing that it does arrives
        self._forget_drops()
        self._open()

    @rule(seed=st.integers(0, 1 << 16))
    def power_cut(self, seed) -> None:
        self.disk.power_cut(self.mount, random.Random(seed))
        self.kept = {number: kept | self.before.get(number, set()) for number, kept in self.kept.items()}
        self._run(self.tier.close())
        for number, owed in self.owed.items():
            if owed is Owed.HAVE and number not in self.flushed:
                self.owed[number] = Owed.EITHER
        self._forget_drops()
        self._open()

    @precondition(lambda self: self.owed and self.frail)
    @rule(which=st.integers(0, 99), where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 8))
    def damage(self, which, where, bit) -> None:
        """A bit of a file flips, or (bit 8) its end is gone, while nobody has it open."""
        self._run(self.tier.close())
        files = [inode for _, inode in sorted(self.disk.files().items()) if inode.data]
        if files:
            inode = files[which % len(files)]
            at = int(where * len(inode.data))
            if bit == 8:
                del inode.data[at:]
            else:
                inode.data[at] ^= 1 << bit
            inode.durable = bytes(inode.data)
            self.owed = dict.fromkeys(range(80), Owed.EITHER)  # a dead bit may be what has flipped
            self.suspect.update(self.owed)
            self.kept = {number: {retention(number), *map(Retention, PRIORITIES)} for number in self.owed}
            self.flushed.clear()
        self._open()

    @invariant()
    def caps_hold(self) -> None:
        if self.tier is None:
            return
        self.tier.check()
        usage = self.tier.usage()
        assert self.disk.peak_bytes <= CAPACITY_BYTES
        state_bytes = 2 * PAGE  # where a path notes its budget; not asked for beforehand
        assert self.disk.capacity_bytes - self.disk.peak_bytes >= MIN_FREE_BYTES - state_bytes
        assert usage.capacity_bytes == CAPACITY_BYTES
        assert usage.live_bytes <= usage.used_bytes <= CAPACITY_BYTES
        least = sum(owed is Owed.HAVE for owed in self.owed.values())
        most = sum(owed is not Owed.ABSENT for owed in self.owed.values())
        assert least <= usage.blocks <= most
        for day, written in self.disk.written_by_day.items():
            assert not self.path.daily_write_bytes or written <= DAILY_BYTES, day

    def teardown(self) -> None:
        try:
            if self.tier is not None:
                self._get(list(range(80)))
                self._run(self.tier.close())
                assert not self.mount.handles
        finally:
            self.loop.close()

    def _run(self, verb):
        return self.loop.run_until_complete(asyncio.wait_for(verb, WAIT_S))

    def _owes(self, number: int) -> Owed:
        return self.owed.get(number, Owed.ABSENT)

    def _kept(self, number: int) -> set[Retention]:
        return self.kept.get(number, {retention(number)})

    def _forget_drops(self) -> None:
        """A drop is not a promise beyond the process; a clear is, and its blocks are not in the dict any more."""
        for number, owed in self.owed.items():
            if owed is Owed.ABSENT:
                self.owed[number] = Owed.EITHER

    def _open(self) -> None:
        self.mount = self.disk.mount()
        self.disk.day = lambda: int(self.now // DAY_S)
        self.tier = NvmeTier.open(
            [self.path],
            files=self.mount,
            codec=self.codec,
            clock=lambda: self.now,
            wall=lambda: self.now,
            segment_bytes=SEGMENT_BYTES,
            threads=1,
            keys=self.keys,
            tenant_of=lambda fingerprint: TENANTS[fingerprint],
        )
        found: dict[int, Retention] = {}
        for part in self.tier.inventory():
            assert part.block_bytes in {block_bytes(0), block_bytes(1)}
            for n in range(len(part.keys)):
                number = int(part.tokens[n][0])
                assert number not in found
                assert part.keys[n].tobytes() == key(number)
                assert part.parents[n].tobytes() == key(number - 1)
                assert part.tokens[n].tobytes() == tokens(number)
                assert part.fingerprint == fingerprint(number)
                found[number] = Retention(int(part.priority[n]), float(part.ttl_s[n]), bool(part.pinned[n]))
        for number in range(80):
            owed = self._owes(number)
            assert owed is Owed.EITHER or (number in found) is (owed is Owed.HAVE), (number, owed)
            if number in found:
                assert found[number] in self._kept(number), number

    def _get(self, batch: list[int]) -> None:
        asked = [wanted(number) for number in batch]
        answers = self._run(self.tier.get(asked, deadline_s=DEADLINE_S))
        for number, want, answer in zip(batch, asked, answers, strict=True):
            if isinstance(answer, Hit):
                assert is_right(want, number), number
                self.suspect.discard(number)
                assert self._owes(number) is not Owed.ABSENT, number
                self.owed[number] = Owed.HAVE
            else:
                assert self._owes(number) is not Owed.HAVE, (number, answer)
                assert answer in {Miss(), Failed("corrupt")}, answer
                self.owed[number] = Owed.ABSENT


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
