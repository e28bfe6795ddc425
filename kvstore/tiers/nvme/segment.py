"""Segment: one append-only file of records, and what memory knows of it.

Owned by the event loop. A record has an ordinal, its place in the columns: 28 bytes a record, beside its key.
`size_bytes` is what the file takes, from the moment it is made. A dead record keeps its place until the
file goes; its bit on the disk follows when the dirty bitmap pages are written.
"""

from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ....proto import PAGE_BYTES
from ....proto.footer import Group, Table, TableBuilder, footer_bytes, group_of, row_bytes
from ....proto.record import KEY_BYTES, VERSION, RecordHeader, SegmentHeader, header_pages, pages

SUFFIX = ".seg"
_BITS_A_PAGE = 8 * PAGE_BYTES
_GROUP_SLACK_PAGES = {True: 6, False: 1}  # encrypted or not: of the footer, for groups that the next request may bring


def file_name(number: int) -> str:
    return f"{number:016x}{SUFFIX}"


def exact_bytes(count: int, groups: int, row_sizes: int, version: int) -> int:
    """Of a segment for just these records: `count` pages, so many groups and bytes of footer rows."""
    bitmap = 1
    while True:
        size = (1 + bitmap + count) * PAGE_BYTES + footer_bytes(groups, row_sizes, version)
        if SegmentHeader(0, 0, size, 0).bitmap_pages <= bitmap:
            return size
        bitmap += 1


def empty_bytes(size_bytes: int, version: int = VERSION) -> int:
    """What a segment of at most `size_bytes` takes beside its records and their footer rows."""
    header = SegmentHeader(0, 0, size_bytes, 0, version)
    slack = 1 + _GROUP_SLACK_PAGES[header.encrypted]
    return (1 + header.bitmap_pages + slack) * PAGE_BYTES + footer_bytes(0, 0, version)


@dataclass(slots=True, eq=False)
class Writing:
    """What only a segment that is not sealed has.

    handle:             of the file; None = it could not be opened again.
    next_page:          free from there on.
    promised_row_bytes: of the footer, for records written or about to be.
    pending:            writes under way.
    closed:             takes no more records.
    """

    handle: int | None
    table: TableBuilder
    next_page: int
    promised_row_bytes: int = 0
    pending: int = 0
    closed: bool = False


@dataclass(slots=True, eq=False)
class Tally:
    """Live records of all segments of one device."""

    pages: int = 0
    row_bytes: int = 0

    @property
    def bytes(self) -> int:
        return self.pages * PAGE_BYTES


class Segment:
    """slot: number of the segment in this process, in every locator of its records. tally: counts its live records;
    None = they are copies whose originals still count."""

    def __init__(self, slot: int, header: SegmentHeader, path: Path, size_bytes: int, tally: Tally | None) -> None:
        self.slot = slot
        self.header = header
        self.path = path
        self.size_bytes = size_bytes
        self.tally = tally
        self.writing: Writing | None = None
        self.readers = 0
        self.doomed = False  # being unlinked
        self.unreadable = False  # not even to be copied; it goes when its records have been asked for, or dropped
        self.unsynced = False
        self.newest = 0  # highest sequence
        self.live = 0
        self.live_pages = 0
        self.live_row_bytes = 0
        self.dirty: set[int] = set()  # pages of the bitmap that differ from the disk's
        self.bitmap = bytearray(header.bitmap_pages * PAGE_BYTES)
        self.groups: list[Group] = []
        self.keys: list[bytes] = []
        self.pages = array("I")  # where it begins
        self.lengths = array("I")  # pages, its header's included
        self.sequences = array("Q")
        self._group_of = array("H")
        self._codecs = array("B")
        self.alive = bytearray()

    @property
    def first_page(self) -> int:
        """Where records begin."""
        return 1 + self.header.bitmap_pages

    @property
    def sealed(self) -> bool:
        return self.writing is None

    @property
    def live_bytes(self) -> int:
        """Of live records and their share of the footer."""
        return self.live_pages * PAGE_BYTES + self.live_row_bytes

    def group(self, ordinal: int) -> Group:
        return self.groups[self._group_of[ordinal]]

    def head_pages(self, ordinal: int) -> int:
        group = self.group(ordinal)
        return header_pages(group.block_tokens, encrypted=bool(group.key_id))

    def codec(self, ordinal: int) -> int:
        return self._codecs[ordinal]

    def is_live(self, ordinal: int) -> bool:
        return bool(self.alive[ordinal])

    def live_ordinals(self) -> Iterator[int]:
        return (ordinal for ordinal, alive in enumerate(self.alive) if alive)

    def fits(self, count: int, row_sizes: int) -> bool:
        """Whether records of `count` pages together, and of these footer rows, can still be appended."""
        writing = self.writing
        if writing is None or writing.closed:
            return False
        version = self.header.version
        footer = footer_bytes(0, writing.promised_row_bytes + row_sizes, version)
        footer += footer_bytes(len(writing.table.groups), 0, version)
        footer += _GROUP_SLACK_PAGES[self.header.encrypted] * PAGE_BYTES
        return (writing.next_page + count) * PAGE_BYTES + footer <= self.header.size_bytes

    @property
    def footer_bytes(self) -> int:
        """Of what sealing it will write, records on their way included."""
        writing = self.writing
        if writing is None:
            return 0
        return footer_bytes(len(writing.table.groups), writing.promised_row_bytes, self.header.version)

    def append(self, count: int, row_sizes: int) -> int:
        """Take the next `count` pages; the first of them."""
        writing = self.writing
        assert writing is not None
        page = writing.next_page
        writing.next_page += count
        writing.promised_row_bytes += row_sizes
        return page

    def add(self, header: RecordHeader, page: int, tokens: bytes) -> int:
        """A record has been written at `page`; its ordinal. It is live."""
        assert self.writing is not None
        group = self.writing.table.add(header, page, tokens)
        if group == len(self.groups):
            self.groups.append(group_of(header))
        self.keys.append(header.key)
        self.pages.append(page)
        self.lengths.append(header.record_pages)
        self.sequences.append(header.sequence)
        self._group_of.append(group)
        self._codecs.append(header.codec)
        self.alive.append(1)
        self.newest = max(self.newest, header.sequence)
        self._count(1, header.record_pages, row_bytes(header.block_tokens))
        return len(self.keys) - 1

    def load(self, table: Table, gone: Collection[int] = ()) -> list[int]:
        """All records of a recovered segment; live, but those whose bit is set, and those of groups that are `gone`:
        how many of these were not dead before, by group. O(records) in numpy."""
        rows = table.rows
        kinds = [(group.block_tokens, bool(group.key_id)) for group in table.groups]
        heads = np.array([header_pages(count, encrypted=hidden) for count, hidden in kinds], dtype=np.uint32)
        tokens = np.array([row_bytes(group.block_tokens) for group in table.groups], dtype=np.int64)
        lengths = (heads[rows["group"]] + -(-rows["stored_bytes"].astype(np.int64) // PAGE_BYTES)).astype(np.uint32)
        bits = np.unpackbits(np.frombuffer(self.bitmap, np.uint8), bitorder="little")
        alive = bits[rows["page"]] == 0
        lost = alive & np.isin(rows["group"], list(gone))
        alive &= ~lost
        keys = np.ascontiguousarray(rows["key"]).tobytes()
        self.groups = list(table.groups)
        self.keys = [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]
        for column, values in (
            (self.pages, rows["page"]),
            (self.lengths, lengths),
            (self.sequences, rows["sequence"]),
            (self._group_of, rows["group"]),
            (self._codecs, rows["codec"]),
        ):
            column.frombytes(np.ascontiguousarray(values).tobytes())
        self.alive = bytearray(alive.tobytes())
        self.newest = int(rows["sequence"].max(initial=0))
        self._count(int(alive.sum()), int(lengths[alive].sum()), int(tokens[rows["group"]][alive].sum()))
        for page in rows["page"][lost].tolist():
            self.bury(page)
        return np.bincount(rows["group"][lost], minlength=len(table.groups)).tolist()

    def kill(self, ordinal: int, *, moved: bool = False) -> None:
        """A live record is dead. moved: a copy of it lives, so its bit, which speaks for all copies, stays clear."""
        assert self.alive[ordinal]
        self.alive[ordinal] = 0
        self._count(-1, -self.lengths[ordinal], -row_bytes(self.group(ordinal).block_tokens))
        if not moved:
            self.bury(self.pages[ordinal])

    def bury(self, page: int) -> None:
        """Whatever record begins at `page` must not come back."""
        self.bitmap[page // 8] |= 1 << page % 8
        self.dirty.add(page // _BITS_A_PAGE)

    def take_dirty(self) -> list[tuple[int, bytes]]:
        """(page of the file, its new content) of the bitmap's dirty pages, which count as written from now on."""
        found = [(1 + at, bytes(self.bitmap[at * PAGE_BYTES : (at + 1) * PAGE_BYTES])) for at in sorted(self.dirty)]
        self.dirty.clear()
        return found

    def put_back_dirty(self, taken: Sequence[tuple[int, bytes]]) -> None:
        """They could not be written."""
        self.dirty.update(page - 1 for page, _ in taken)

    def ordinals_of(self, fingerprint: bytes | None) -> list[int]:
        """Live records of a namespace, or all."""
        if fingerprint is None:
            return list(self.live_ordinals())
        groups = {at for at, group in enumerate(self.groups) if group.fingerprint == fingerprint}
        return [ordinal for ordinal in self.live_ordinals() if self._group_of[ordinal] in groups] if groups else []

    def count_in(self, tally: Tally) -> None:
        """Its records are no copies any more."""
        self.tally = tally
        tally.pages += self.live_pages
        tally.row_bytes += self.live_row_bytes

    def _count(self, records: int, count: int, row_sizes: int) -> None:
        self.live += records
        self.live_pages += count
        self.live_row_bytes += row_sizes
        if self.tally is not None:
            self.tally.pages += count
            self.tally.row_bytes += row_sizes

    def check(self) -> None:
        """AssertionError unless the counters agree with the columns. O(records)."""
        live = list(self.live_ordinals())
        assert self.live == len(live)
        assert self.live_pages == sum(self.lengths[at] for at in live)
        assert self.live_row_bytes == sum(row_bytes(self.group(at).block_tokens) for at in live)
        assert all(self.bitmap[page // 8] >> page % 8 & 1 == 0 for page in _at(self.pages, live))


def _at(column: Sequence[int], ordinals: Iterable[int]) -> Iterator[int]:
    return (column[ordinal] for ordinal in ordinals)


def record_cost(block_tokens: int, stored_bytes: int, *, encrypted: bool) -> tuple[int, int]:
    """(pages, bytes of its footer row) of a record."""
    return header_pages(block_tokens, encrypted=encrypted) + pages(stored_bytes), row_bytes(block_tokens)
