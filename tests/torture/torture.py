"""`make torture`: kill -9 a process that writes to the NVMe tier, reopen, and count what was promised. ROUNDS times.

A round forks a writer, which puts, gets, drops, flushes and clears under a cap that keeps the reclaimer busy. Before
and after each verb it writes a line to a pipe, the journal; what got into the pipe outlives the writer. The writer is
killed at a random moment, while it recovers too; then another process opens the same directory and reads every block
that was ever put. Everything comes from the seed but the moment at which the signal arrives.

Found wanting is: a block answered Stored, and not dropped since, that is missing; a block that was cleared and is back;
a byte that is not the block's; a difference between inventory() and what can be got; more bytes on the disk than the
cap; a store that does not open, or an answer that does not come.
"""

import argparse
import asyncio
import enum
import logging
import os
import random
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from kvterrace.kvstore.security.keyring import KeyRing
from kvterrace.kvstore.tiers import Failed, Hit, Miss, Record, Rejected, Stored, Wanted
from kvterrace.kvstore.tiers.codec import PlanesLz4
from kvterrace.kvstore.tiers.nvme import NvmePath, NvmeTier
from kvterrace.proto import Retention

log = logging.getLogger("torture")

MIB = 1 << 20
SEGMENT_BYTES = 1 * MIB
CAPACITY_BYTES = 16 * MIB
TASKS = 4  # each with numbers of its own, so that a number's journal has one order
NUMBERS = 4096  # blocks there can be: more than fit
TENANTS = ("first", "second")  # of the two namespaces
CLEARED_TASK = 0  # its blocks are a namespace of their own, which it clears
DEADLINE_S = 30.0
ROUND_LIMIT_S = 90.0
ENTRY = struct.Struct("<cI")


class Mark(enum.Enum):
    """A line of the journal. Small letters: about to; capitals: done."""

    PUT = b"p"
    STORED = b"P"
    DROP = b"d"
    CLEAR = b"c"
    CLEARED = b"C"
    FLUSHED = b"F"
    WRONG = b"!"


class Must(enum.Enum):
    """What the next opening owes us about a block."""

    HAVE = "have"
    ABSENT = "absent"
    EITHER = "either"


def fingerprint(number: int) -> bytes:
    return bytes([number % TASKS == CLEARED_TASK]) * 32


def block_bytes(number: int) -> int:
    """Some fill their pages, some do not."""
    return 8192 if fingerprint(number)[0] else 12_288 - 512 * (number % 3)


def payload(number: int) -> np.ndarray:
    """The block's own bytes: half noise, half of them compressible."""
    made = np.random.default_rng(number).integers(0, 256, block_bytes(number), dtype=np.uint8)
    made[1::2] &= 3
    return made


def identity(number: int) -> tuple[bytes, bytes, bytes]:
    key = xxhash.xxh3_128_digest(str(number).encode()) * 2
    parent = xxhash.xxh3_128_digest(str(number // 2).encode()) * 2
    return key, parent, np.full(16, number, np.int32).tobytes()


def record(number: int) -> Record:
    content = payload(number)
    checksum = xxhash.xxh3_64_intdigest(content)
    retention = Retention(priority=number % 101, ttl_s=float(number % 7), pinned=number % 5 == 0)
    key, parent, tokens = identity(number)
    return Record(
        fingerprint(number), key, parent, tokens, len(content), content, checksum, retention=retention, itemsize=2
    )


def wanted(number: int) -> Wanted:
    return Wanted(fingerprint(number), *identity(number), block_bytes(number), np.zeros(block_bytes(number), np.uint8))


def open_tier(where: Path) -> NvmeTier:
    """Encrypted, where there is a file of keys beside the directory."""
    path = NvmePath(where, CAPACITY_BYTES, min_free_bytes=0)
    keys = KeyRing.load(key_file(where), {}) if key_file(where).exists() else None
    tenant_of = {bytes([n]) * 32: name for n, name in enumerate(TENANTS)}.get
    return NvmeTier.open([path], segment_bytes=SEGMENT_BYTES, codec=PlanesLz4(), keys=keys, tenant_of=tenant_of)


def key_file(where: Path) -> Path:
    return where.with_suffix(".keys")


def write_keys(where: Path) -> None:
    key_file(where).touch(0o600)
    key_file(where).write_text("".join(f'{name} = "{os.urandom(32).hex()}"\n' for name in TENANTS))


def disk_bytes(where: Path) -> int:
    return sum(each.stat().st_blocks * 512 for each in where.rglob("*") if each.is_file())


class Writer:
    """What is killed: TASKS loops over one tier, each over its own numbers."""

    def __init__(self, tier: NvmeTier, journal: int, seed: int, there: set[int]) -> None:
        self._tier = tier
        self._journal = journal
        self._rng = random.Random(seed)
        self._there = there

    async def run(self) -> None:
        await asyncio.gather(*(self._task(task) for task in range(TASKS)))

    def _note(self, mark: Mark, numbers: list[int]) -> None:
        os.write(self._journal, b"".join(ENTRY.pack(mark.value, number) for number in numbers))

    async def _task(self, task: int) -> None:
        mine = range(task, NUMBERS, TASKS)
        while True:
            choice = self._rng.random()
            if choice < 0.6:
                await self._put(self._rng.sample(mine, self._rng.choice((1, 3, 30))))
            elif choice < 0.8:
                await self._get(self._rng.sample(mine, 20))
            elif choice < 0.9:
                await self._drop([number for number in mine if self._rng.random() < 0.1])
            elif choice < 0.98 or task != CLEARED_TASK:
                if await self._tier.flush(deadline_s=DEADLINE_S):
                    self._note(Mark.FLUSHED, [0])
            else:
                await self._clear()
            await asyncio.sleep(0)

    async def _put(self, numbers: list[int]) -> None:
        self._note(Mark.PUT, numbers)
        answers = await self._tier.put([record(number) for number in numbers], deadline_s=DEADLINE_S)
        stored = [number for number, answer in zip(numbers, answers, strict=True) if isinstance(answer, Stored)]
        self._note(Mark.STORED, stored)
        self._there.update(stored)
        if any(answer == Rejected("full") for answer in answers):
            own = [number for number in self._there if number % TASKS == numbers[0] % TASKS]
            await self._drop(self._rng.sample(own, len(own) // 4))

    async def _get(self, numbers: list[int]) -> None:
        asked = [wanted(number) for number in numbers]
        answers = await self._tier.get(asked, deadline_s=DEADLINE_S)
        for number, want, answer in zip(numbers, asked, answers, strict=True):
            fine = np.array_equal(want.into, payload(number)) if isinstance(answer, Hit) else isinstance(answer, Miss)
            if not fine or (isinstance(answer, Miss) and number in self._there):
                self._note(Mark.WRONG, [number])

    async def _drop(self, numbers: list[int]) -> None:
        self._note(Mark.DROP, numbers)
        await self._tier.drop([identity(number)[0] for number in numbers])
        self._there.difference_update(numbers)

    async def _clear(self) -> None:
        self._note(Mark.CLEAR, [0])
        await self._tier.clear(fingerprint(CLEARED_TASK))
        self._note(Mark.CLEARED, [0])
        self._there.difference_update(range(CLEARED_TASK, NUMBERS, TASKS))


@dataclass
class Book:
    """What the journals promise, over all rounds."""

    owed: dict[int, Must] = field(default_factory=dict)
    stored: int = 0
    flushes: int = 0
    faults: list[str] = field(default_factory=list)

    def read(self, journal: bytes) -> None:
        """Follow a journal. A torn last line was not promised to anyone."""
        for mark, number in ENTRY.iter_unpack(journal[: len(journal) // ENTRY.size * ENTRY.size]):
            self._follow(Mark(mark), number)

    def _follow(self, mark: Mark, number: int) -> None:
        match mark:
            case Mark.PUT:
                if self.owed.get(number) is not Must.HAVE:
                    self.owed[number] = Must.EITHER
            case Mark.STORED:
                self.owed[number] = Must.HAVE
                self.stored += 1
            case Mark.DROP:
                self.owed[number] = Must.EITHER  # a drop costs no write: after a crash the block may be back
            case Mark.CLEAR | Mark.CLEARED:
                left = Must.EITHER if mark is Mark.CLEAR else Must.ABSENT
                self.owed.update(dict.fromkeys(range(CLEARED_TASK, NUMBERS, TASKS), left))
            case Mark.FLUSHED:
                self.flushes += 1
            case Mark.WRONG:
                self.faults.append(f"block {number}: lost or of other bytes before the kill")

    def settle(self, number: int, found: bool) -> None:
        """Compare with what the reopened tier has; from here on that is what is owed."""
        owed = self.owed.get(number, Must.ABSENT)
        if owed is not Must.EITHER and found is not (owed is Must.HAVE):
            self.faults.append(f"block {number}: {'is back after it was cleared' if found else 'was stored, is gone'}")
        self.owed[number] = Must.HAVE if found else Must.ABSENT


def inspect(where: Path, report: int) -> None:
    """Open the tier as a new process would; write (number, found) for every block, "!" for a wrong one."""
    if disk_bytes(where) > CAPACITY_BYTES:
        raise RuntimeError(f"{disk_bytes(where)} bytes on the disk, cap {CAPACITY_BYTES}")
    tier = open_tier(where)
    listed = _listed(tier)
    asyncio.run(_inspect(tier, listed, report))
    if disk_bytes(where) > CAPACITY_BYTES:
        raise RuntimeError(f"{disk_bytes(where)} bytes on the disk after recovery, cap {CAPACITY_BYTES}")


def _listed(tier: NvmeTier) -> dict[bytes, tuple[bytes, bytes, int, bool]]:
    rows: dict[bytes, tuple[bytes, bytes, int, bool]] = {}
    for part in tier.inventory():
        for n in range(len(part.keys)):
            row = (part.parents[n].tobytes(), part.tokens[n].tobytes(), int(part.priority[n]), bool(part.pinned[n]))
            rows[part.keys[n].tobytes()] = row
    return rows


async def _inspect(tier: NvmeTier, listed: dict[bytes, tuple[bytes, bytes, int, bool]], report: int) -> None:
    for first in range(0, NUMBERS, 256):
        numbers = range(first, first + 256)
        asked = [wanted(number) for number in numbers]
        answers = await tier.get(asked, deadline_s=DEADLINE_S)
        for number, want, answer in zip(numbers, asked, answers, strict=True):
            row = listed.get(want.key)
            if isinstance(answer, Failed) or (row is not None) is not isinstance(answer, Hit):
                raise RuntimeError(f"block {number}: {answer}, but the inventory says {row is not None}")
            if row is not None and row != (want.parent, want.tokens, number % 101, number % 5 == 0):
                raise RuntimeError(f"block {number}: the inventory has it wrong: {row}")
            if row is not None and not np.array_equal(want.into, payload(number)):
                raise RuntimeError(f"block {number}: wrong bytes, answered {answer}")
            os.write(report, ENTRY.pack(b"1" if row is not None else b"0", number))
    await tier.close()


@contextmanager
def forked(work: Callable[[int], None]) -> Iterator[tuple[int, int]]:
    """A child that does `work(pipe)` and leaves; yields (pid, our end). Killed and reaped at the end."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(ours)
            work(theirs)
            code = 0
        except BaseException:
            log.exception("the child failed")
        finally:
            os._exit(code)
    os.close(theirs)
    try:
        yield pid, ours
    finally:
        os.close(ours)


def drain(pipe: int, until: float) -> tuple[bytes, bool]:
    """What arrives before `until`; and whether the other side has closed."""
    got = bytearray()
    while (left := until - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            break
        part = os.read(pipe, 1 << 16)
        if not part:
            return bytes(got), True
        got += part
    return bytes(got), False


def write_and_kill(where: Path, book: Book, rng: random.Random) -> None:
    seed, there = rng.random(), {number for number, owed in book.owed.items() if owed is Must.HAVE}

    def work(pipe: int) -> None:
        asyncio.run(Writer(open_tier(where), pipe, int(seed * (1 << 32)), set(there)).run())

    with forked(work) as (pid, pipe):
        if rng.random() < 0.75:  # while it writes, else while it starts
            select.select([pipe], [], [], ROUND_LIMIT_S)
        delay_s = rng.choice((rng.uniform(0.0, 0.05), rng.uniform(0.0, 0.4)))
        journal, ended = drain(pipe, time.monotonic() + delay_s)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        rest, _ = drain(pipe, time.monotonic() + ROUND_LIMIT_S)
    if ended:
        book.faults.append("the writer ended by itself")
    book.read(journal + rest)


def reopen(where: Path, book: Book) -> None:
    with forked(lambda pipe: inspect(where, pipe)) as (pid, pipe):
        found, ended = drain(pipe, time.monotonic() + ROUND_LIMIT_S)
        if not ended:
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    if not ended or status:
        book.faults.append("no answer in time" if not ended else "the store did not open, or served what it must not")
        return
    for mark, number in ENTRY.iter_unpack(found):
        book.settle(number, mark == b"1")


def torture(rounds: int, seed: int, where: Path) -> Book:
    """Rounds until one finds a fault, in the empty directory `where`."""
    book = Book()
    began = time.monotonic()
    for turn in range(rounds):
        rng = random.Random(seed * 1_000_003 + turn)
        write_and_kill(where, book, rng)
        reopen(where, book)
        if book.faults:
            log.error("round %d of seed %d: %s", turn, seed, "; ".join(book.faults[:10]))
            break
        if (turn + 1) % 50 == 0:
            have = sum(owed is Must.HAVE for owed in book.owed.values())
            log.info("%d rounds, %d blocks there, %d stored, %d flushes", turn + 1, have, book.stored, book.flushes)
    log.info("%d kills in %.0f s, %d blocks stored", turn + 1, time.monotonic() - began, book.stored)
    return book


def main() -> int:
    parser = argparse.ArgumentParser(description="kill -9 a writer of the NVMe tier, again and again")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encrypted", action="store_true", help="with a key for each namespace")
    parser.add_argument("--dir", type=Path, default=None, help="a directory on the disk to try (kept after a fault)")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("kvterrace").setLevel(logging.ERROR)
    if args.dir is not None:
        args.dir.mkdir(parents=True, exist_ok=True)
    where = Path(tempfile.mkdtemp(prefix="kvterrace-torture-", dir=args.dir))
    if args.encrypted:
        write_keys(where)
    book = torture(args.rounds, args.seed, where)
    if book.faults:
        log.error("the files are left in %s", where)
        return 1
    if not book.stored:
        log.error("nothing was ever stored: this proves nothing")
        return 1
    shutil.rmtree(where)
    key_file(where).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
