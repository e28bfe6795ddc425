"""Request traces: what was asked for and when, with prompts as chains of block ids. Read whole, in order of time.

Formats: JSON lines with `timestamp` (ms), `input_length`, `output_length` (tokens) and `hash_ids` (one a block, perhaps
one for a partial last block), optional `agent`, `block_tokens`, `namespace`, others ignored; and Azure's CSV, lengths
that say nothing of prefixes. Either may be gzipped. A line that cannot be used is counted and told with its number.

An id is taken together with everything before it: what a block is called here is a small number that stands for its
whole prefix, whether the trace's ids are chained or not. Packed as int32, these are the tokens of an index whose blocks
have one token.
"""

import gzip
import json
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import KvterraceError

MAX_LINE_BYTES = 64 << 20
MAX_TOKENS = 1 << 40  # of one request: what is above is no length
SHOWN_BAD_LINES = 10
AZURE_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
_GZIP_MAGIC = b"\x1f\x8b"


class TraceError(KvterraceError):
    """A file that cannot be read, or has nothing to replay."""


@dataclass(frozen=True, slots=True)
class Request:
    """at_s: seconds since the trace's first request. blocks: packed int32, one number a block. space, agent: positions
    in Trace.spaces and Trace.agents."""

    at_s: float
    input_tokens: int
    output_tokens: int
    blocks: bytes
    space: int
    agent: int

    @property
    def count(self) -> int:
        """Blocks of the prompt."""
        return len(self.blocks) // 4


@dataclass(slots=True)
class BadLines:
    """Lines that were left out: how many, and of the first of them the number and the reason."""

    count: int = 0
    shown: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])

    def add(self, line: int, reason: str) -> None:
        self.count += 1
        if len(self.shown) < SHOWN_BAD_LINES:
            self.shown.append((line, reason))


@dataclass(frozen=True, slots=True)
class Trace:
    """requests: in order of time. unique: different blocks in all of them. block_tokens: tokens a block, as the lines
    say or as the lengths imply; 0 = neither does. prefixes: False when the format has lengths only."""

    name: str
    requests: list[Request]
    unique: int
    block_tokens: int
    prefixes: bool
    spaces: tuple[str, ...]
    agents: tuple[str, ...]
    bad: BadLines

    @property
    def blocks(self) -> int:
        return sum(request.count for request in self.requests)

    @property
    def input_tokens(self) -> int:
        return sum(request.input_tokens for request in self.requests)

    @property
    def duration_s(self) -> float:
        return self.requests[-1].at_s if self.requests else 0.0


def read_trace(path: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> Trace:
    """Read a trace. TraceError when the file cannot be read or none of its lines can be used.

    progress: called now and then with the bytes of the file read so far, and its size.
    """
    try:
        with path.open("rb") as raw:
            total = path.stat().st_size
            lines = _lines(_plain(raw), lambda: progress(raw.tell(), total))
            return _parse(path.name, lines)
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from None


def _plain(raw: BinaryIO) -> BinaryIO:
    magic = raw.read(len(_GZIP_MAGIC))
    raw.seek(0)
    return cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if magic == _GZIP_MAGIC else raw


def _lines(source: BinaryIO, tick: Callable[[], None]) -> Iterator[tuple[int, bytes | str]]:
    """(number, line); a str in place of the bytes says what is wrong with the line, and the first such is the last."""
    number = 0
    while True:
        number += 1
        try:
            line = source.readline(MAX_LINE_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            yield number, "the compressed data is cut off or damaged here"
            return
        if not line:
            return
        if len(line) >= MAX_LINE_BYTES:
            yield number, f"longer than {MAX_LINE_BYTES >> 20} MiB"
            return
        if number % 256 == 0:
            tick()
        if line.strip():
            yield number, line


def _parse(name: str, lines: Iterator[tuple[int, bytes | str]]) -> Trace:
    reader: _Reader | None = None
    bad = BadLines()
    for number, line in lines:
        if isinstance(line, str):
            bad.add(number, line)
        elif reader is None and line.strip().removeprefix(b"\xef\xbb\xbf") == AZURE_HEADER:
            reader = _Azure()
        else:
            reader = reader or _Json()
            problem = reader.take(line)
            if problem:
                bad.add(number, problem)
    if reader is None or not reader.requests:
        first = f"; line {bad.shown[0][0]}: {bad.shown[0][1]}" if bad.count else ""
        raise TraceError(f"{name} has no line that is a request{first}")
    return reader.trace(name, bad)


class _Reader:
    """What both formats share: requests so far, and names of namespaces and agents."""

    prefixes = False

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.spaces: dict[str, int] = {}
        self.agents: dict[str, int] = {}
        self.numbers: dict[tuple[int, int | str], int] = {}  # (number of the block before, id) -> number
        self.block_tokens = 0

    def take(self, line: bytes) -> str:
        """Use one line; why it cannot be used, or ""."""
        raise NotImplementedError

    def trace(self, name: str, bad: BadLines) -> Trace:
        requests = sorted(self.requests, key=attrgetter("at_s"))  # stable: equal times stay in the file's order
        began = requests[0].at_s
        requests = [
            Request(each.at_s - began, each.input_tokens, each.output_tokens, each.blocks, each.space, each.agent)
            for each in requests
        ]
        return Trace(
            name,
            requests,
            unique=len(self.numbers),
            block_tokens=self.block_tokens or _implied_block_tokens(requests),
            prefixes=self.prefixes,
            spaces=tuple(self.spaces),
            agents=tuple(self.agents),
            bad=bad,
        )


class _Json(_Reader):
    prefixes = True

    def take(self, line: bytes) -> str:
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError):
            return "not JSON"
        if not isinstance(row, dict):
            return "not a JSON object"
        fields = cast("dict[str, object]", row)
        ids = fields.get("hash_ids")
        at, given, made = (fields.get(name, 0) for name in ("timestamp", "input_length", "output_length"))
        block_tokens = fields.get("block_tokens", self.block_tokens)
        if not _is_number(at) or "timestamp" not in fields:
            return "timestamp is not a time in milliseconds"
        if not _is_count(given) or "input_length" not in fields:
            return "input_length is not a number of tokens"
        if not _is_count(made):
            return "output_length is not a number of tokens"
        if not isinstance(ids, list) or not all(type(each) in (int, str) for each in cast("list[object]", ids)):
            return "hash_ids is not a list of block ids"
        if not _is_count(block_tokens) or (self.block_tokens and block_tokens != self.block_tokens):
            return f"block_tokens is not {self.block_tokens or 'a number'}, as on the lines before"
        self.block_tokens = cast(int, block_tokens)
        space = self.spaces.setdefault(str(fields.get("namespace", "")), len(self.spaces))
        agent = self.agents.setdefault(str(fields.get("agent", "")), len(self.agents))
        blocks = self._number(cast("list[int | str]", ids), space)
        self.requests.append(Request(cast(float, at) / 1e3, cast(int, given), cast(int, made), blocks, space, agent))
        return ""

    def _number(self, ids: list[int | str], space: int) -> bytes:
        numbers, packed = self.numbers, array("i")
        above = -1 - space  # a first block's number stands for its namespace, too
        for each in ids:
            above = numbers.setdefault((above, each), len(numbers))
            packed.append(above)
        return packed.tobytes()


class _Azure(_Reader):
    def take(self, line: bytes) -> str:
        try:
            at, given, made = line.decode("ascii").strip().split(",")
            row = Request(datetime.fromisoformat(at).timestamp(), int(given), int(made), b"", 0, 0)
        except ValueError:
            return "not a time and two numbers of tokens"
        if not (_is_count(row.input_tokens) and _is_count(row.output_tokens)):
            return "not a number of tokens"
        self.requests.append(row)
        return ""


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKENS


def _implied_block_tokens(requests: list[Request]) -> int:
    """The block length that all lengths agree with, whether partial last blocks are listed or not; 0 if there is none.

    n ids of b tokens: (n - 1) * b < length < (n + 1) * b. Of several such b, the one that most powers of two divide.
    """
    lowest, highest = 0, 0
    for request in requests:
        if request.count > 1:
            low, high = (
                request.input_tokens // (request.count + 1) + 1,
                -(-request.input_tokens // (request.count - 1)) - 1,
            )
            lowest, highest = max(lowest, low), min(highest or high, high)
    if not 0 < lowest <= highest:
        return 0
    step = 1 << highest.bit_length()
    while highest // step * step < lowest:
        step //= 2
    return highest // step * step
