"""Capture: what a running store is asked for, written down as a trace that the simulator reads.

The sidecar sends salted hashes, another salt for each capture: no token leaves it, and two captures cannot be joined.
It does not know how long answers become, so `output_length` is 0.
"""

import contextlib
import gzip
import json
from collections.abc import AsyncIterable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...proto import kv_pb2 as pb
from .trace import TraceError


class Out(Protocol):
    """Where lines go."""

    def write(self, line: bytes, /) -> object: ...


@dataclass(slots=True)
class Captured:
    """requests: written; lost: not, because this reader was slower than they came."""

    requests: int = 0
    lost: int = 0


def trace_line(event: pb.TraceEvent) -> bytes:
    """One request as a line of the trace format."""
    row = {
        "timestamp": round(event.timestamp_s * 1e3, 3),
        "input_length": event.input_length,
        "output_length": 0,
        "hash_ids": list(event.hashes),
        "block_tokens": event.block_tokens,
        "namespace": event.namespace.hex(),
    }
    return json.dumps(row, separators=(",", ":")).encode() + b"\n"


async def capture(
    events: AsyncIterable[pb.TraceEvent], out: Out, done: Captured, *, requests: int | None = None
) -> None:
    """Write events to `out`, counting in `done`, until so many requests are written or the stream ends; cancel it to
    end it earlier, between two lines."""
    async for event in events:
        out.write(trace_line(event))
        done.requests += 1
        done.lost += event.lost
        if done.requests == requests:
            return


@contextlib.contextmanager
def open_out(path: Path) -> Generator[Out]:
    """A new file, compressed if its name ends in .gz. TraceError when there is one already, or it cannot be made."""
    try:
        raw = path.open("xb")
    except FileExistsError:
        raise TraceError(f"{path} is there already, and a capture overwrites nothing") from None
    except OSError as error:
        raise TraceError(f"{path} cannot be written: {error.strerror}") from None
    with raw:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=raw, mode="wb") as packed:
                yield packed
        else:
            yield raw
