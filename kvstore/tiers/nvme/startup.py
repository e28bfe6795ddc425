"""Startup: from the files of all paths to logs and an index in which every key has one live record."""

import contextlib
import errno
import logging
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ....proto import PAGE_BYTES
from ....proto.footer import Group, Table, pinned
from ....proto.record import HASH_NAMES
from ...errors import NvmeError
from .device import Device, Options
from .files import Files
from .index import RecordIndex
from .log import Log
from .recovery import Found, Recovered, read_segment, recover
from .segment import Segment, Writing
from .types import Inventory, NvmePath
from .upkeep import read_state, seal_segment

log = logging.getLogger(__name__)

Tables: TypeAlias = dict[int, Table]
"""By segment slot."""

LOCK_NAME = "lock"
MIN_SEGMENTS = 3
# What the user has to mend; anything else a device may say is the device's trouble.
_USERS = {errno.ENOTDIR, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}


def take_paths(paths: Sequence[NvmePath], options: Options) -> "list[tuple[Device, int | None]]":
    """A device for each path, and the handle of its lock; a path whose device fails has none. NvmeError."""
    taken: list[tuple[Device, int | None]] = []
    try:
        for where in paths:
            _refuse(where, paths, options)
            taken.append(_take(where, options))
    except NvmeError:
        release(options.files, [lock for _, lock in taken])
        raise
    return taken


def release(files: Files, locks: Sequence[int | None]) -> None:
    """Let other stores have the paths."""
    for lock in locks:
        if lock is not None:
            with contextlib.suppress(OSError):  # a device that is gone holds no lock
                files.close(lock)


def _refuse(where: NvmePath, paths: Sequence[NvmePath], options: Options) -> None:
    if where.capacity_bytes < MIN_SEGMENTS * options.segment_bytes + 4 * PAGE_BYTES:
        raise NvmeError(
            f"{where.path}: {where.capacity_bytes} bytes are too few; three segments of {options.segment_bytes} bytes "
            "and four pages are the least"
        )
    if sum(other.path.absolute() == where.path.absolute() for other in paths) > 1:
        raise NvmeError(f"{where.path}: given twice")


def _take(where: NvmePath, options: Options) -> "tuple[Device, int | None]":
    files = options.files
    try:
        files.mkdir(where.path)
        lock = files.lock(where.path / LOCK_NAME)
    except BlockingIOError:
        raise NvmeError(f"{where.path}: another store uses it") from None
    except OSError as error:
        if error.errno in _USERS:
            raise NvmeError(f"{where.path}: {error.strerror}") from error
        return _lost(Device(where, options, None), error), None
    return Device(where, options, read_state(files, where.path)), lock


def _lost(device: Device, error: OSError) -> Device:
    device.lost = f"unusable since the start: {(error.strerror or str(error)).lower()}"
    device.totals.errors += 1
    log.error("%s: %s", device.where.path, device.state())
    return device


def open_logs(devices: Sequence[Device], index: RecordIndex[Log]) -> tuple[list[Log], Tables]:
    """Recover every path; then `index` has every key's youngest record. The tables are those of the segments found."""
    logs: list[Log] = []
    tables: list[tuple[Log, Segment, Table, Found]] = []
    for device in devices:
        found = _recovered(device)
        made = Log(device, index, foreign=found.foreign, next_number=found.next_number)
        logs.append(made)
        for each in found.segments:
            segment = Segment(index.new_slot(), each.header, each.path, each.size_bytes, made.tally)
            segment.bitmap = each.bitmap
            segment.unsynced = True  # nobody knows what the process before us had synced
            _load(made, segment, each)
            tables.append((made, segment, each.table, each))
            made.adopt(segment)
    _settle(index, [(segment, found.unsealed is None) for _, segment, _, found in tables])
    for made, segment, _, found in tables:
        _finish(made, segment, found)
    for made in logs:
        made.shrink()
    return logs, {segment.slot: table for _, segment, table, _ in tables}


def _load(made: Log, segment: Segment, found: Found) -> None:
    """The segment's records, but those that may not be given out any more, which are dead from now on."""
    cipher, totals = made.options.cipher, made.device.totals
    gone: set[int] = set()
    for number, group in enumerate(found.table.groups):
        if cipher is not None and cipher.keeps(group, locked=number in found.table.locked):
            cipher.learn(group)
        elif cipher is not None:
            gone.add(number)
    for group, count in zip(found.table.groups, segment.load(found.table, gone), strict=True):
        if group.key_id:
            totals.key_missing_blocks += count
        else:
            totals.clear_dropped_blocks += count
    totals.key_missing_blocks += found.key_missing
    totals.open_failures += found.unopened
    totals.corrupt_blocks += found.unopened


def _recovered(device: Device) -> Recovered:
    if device.lost:
        return Recovered()
    try:
        found = recover(device.opener, device.where.path, device.options.find)
    except OSError as error:
        _lost(device, error)
        return Recovered()
    device.totals.errors += found.errors
    return found


def _settle(index: RecordIndex[Log], segments: Sequence[tuple[Segment, bool]]) -> None:
    """One live record a key: the one with the highest sequence; of a moved record's copies the one that is sealed and
    youngest. What died in one copy is dead in all. O(records log records), in numpy."""
    keys: list[bytes] = []
    parts: list[tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]] = []
    dead: list[NDArray[np.uint64]] = []
    for segment, sealed in segments:
        alive = np.frombuffer(bytes(segment.alive), np.uint8).astype(np.bool_)
        sequences = np.frombuffer(segment.sequences.tobytes(), np.uint64)
        dead.append(sequences[~alive])
        ordinals = np.flatnonzero(alive)
        rank = np.full(len(ordinals), segment.header.number * 2 + sealed * (1 << 62), dtype=np.uint64)
        parts.append((sequences[ordinals], rank, ordinals + index.locator(segment, 0)))
        keys.extend(segment.keys if len(ordinals) == len(alive) else [segment.keys[at] for at in ordinals.tolist()])
    if not parts:
        return
    sequences = np.concatenate([part[0] for part in parts])
    ranks = np.concatenate([part[1] for part in parts])
    locators = np.concatenate([part[2] for part in parts])
    buried = np.isin(sequences, np.concatenate(dead)) if any(map(len, dead)) else np.zeros(len(keys), np.bool_)
    order: NDArray[np.int64] = np.lexsort((ranks, sequences))
    order = order[~buried[order]]
    young_last: list[int] = order.tolist()
    winners: dict[bytes, int] = dict(zip([keys[at] for at in young_last], locators[order].tolist(), strict=True))
    highest = max(segment.newest for segment, _ in segments)
    by_slot = {segment.slot: segment for segment, _ in segments}
    if len(winners) < len(keys):
        kept = set(winners.values())
        pairs: list[tuple[int, int]] = list(zip(locators.tolist(), sequences.tolist(), strict=True))
        surviving = {sequence for locator, sequence in pairs if locator in kept}
        for locator, sequence in pairs:
            if locator not in kept:
                slot, ordinal = index.split(locator)
                by_slot[slot].kill(ordinal, moved=sequence in surviving)
    index.fill(winners, highest + 1)


def _finish(made: Log, segment: Segment, found: Found) -> None:
    """Remove a segment without live records, seal one without footer."""
    files = made.options.files
    if not segment.live:
        with contextlib.suppress(OSError):
            files.unlink(segment.path)
            made.disown(segment)
        return
    if found.unsealed is None:
        return
    table, page = found.unsealed
    writing = segment.writing = Writing(None, table, page, closed=True)
    try:
        writing.handle = made.device.opener.open(segment.path, "write")
        size = seal_segment(files, writing.handle, segment.header, table, page, made.options.find)
        files.close(writing.handle)
    except OSError as error:
        made.device.failed(made.device.writes, error)
        return
    segment.writing = None
    segment.unsynced = False
    made.cut(segment, size)


def inventory(index: RecordIndex[Log], known: Tables) -> Iterator[Inventory]:
    """All live records, by kind, oldest first. What is not in `known` is read from the footers again."""
    parts: dict[Group, list[tuple[NDArray[np.void], NDArray[np.int32]]]] = {}
    for made, segment in sorted(index.segments(), key=lambda entry: entry[1].newest):
        table = known.get(segment.slot) or _table(made, segment)
        if table is None:
            continue
        alive = np.frombuffer(bytes(segment.alive), np.uint8).astype(np.bool_)
        for number, group in enumerate(table.groups):
            members = table.rows["group"] == number
            kept = alive[members]
            if kept.all() and len(kept) == len(alive):
                parts.setdefault(group, []).append((table.rows, table.tokens[number]))
            elif kept.any():
                parts.setdefault(group, []).append((table.rows[members & alive], table.tokens[number][kept]))
    for group, pieces in parts.items():
        yield _inventory(
            group, np.concatenate([rows for rows, _ in pieces]), np.concatenate([ids for _, ids in pieces])
        )


def _table(made: Log, segment: Segment) -> Table | None:
    """What a segment's footer says; None: it cannot be read any more, and its records are dropped."""
    if segment.writing is not None:
        return segment.writing.table.table()
    files = made.options.files
    try:
        handle = made.device.opener.open(segment.path, "read")
        try:
            found = read_segment(files, handle, segment.path, segment.size_bytes, made.options.find)
        finally:
            files.close(handle)
    except OSError as error:
        made.device.failed(made.device.reads, error)
        found = error.strerror
    if isinstance(found, Found) and len(found.table.rows) == len(segment.keys):
        return found.table
    log.error("%s cannot be read any more (%s); its blocks are lost", segment.path, found)
    for ordinal in list(segment.live_ordinals()):
        made.index.drop(segment, ordinal)
    return None


def _inventory(group: Group, rows: "NDArray[np.void]", tokens: NDArray[np.int32]) -> Inventory:
    age = rows["sequence"]
    if (age[1:] < age[:-1]).any():  # moved records keep their age
        order = np.argsort(age, kind="stable")
        rows, tokens = rows[order], tokens[order]
    ttl_s = rows["ttl_s"]
    return Inventory(
        fingerprint=group.fingerprint,
        hash_name=HASH_NAMES[group.hash_id],
        block_tokens=group.block_tokens,
        block_bytes=group.block_bytes,
        keys=rows["key"],
        parents=rows["parent"],
        tokens=tokens,
        priority=rows["priority"],
        ttl_s=ttl_s,
        pinned=pinned(rows),
        expires_s=np.where(ttl_s > 0, rows["written_ms"] / 1000 + ttl_s, np.inf),
        order=rows["sequence"],
    )
