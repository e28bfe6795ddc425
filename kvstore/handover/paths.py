"""Paths: prompts whose blocks one node gives another, hottest first. What comes from a node is checked here.

Heat is about how often a block is used: its uses, over the time since the last one. It never rises along a prompt, so
that the hottest blocks of a store are prefixes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import nlargest
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ...proto import Namespace, Retention, RetentionRange
from ...proto import kv_pb2 as pb
from ...radix import Retentions
from ..residents import Residents
from ..service.frames import (
    MAX_RETENTION_RANGES,
    FrameError,
    check_tokens,
    pack_open,
    pack_retention,
    unpack_namespace,
    unpack_retention,
)

MAX_PATHS = 4096  # given at once
MAX_PATH_BLOCKS = 65_536  # from the first token on
MAX_STRETCH_BLOCKS = 1024  # meant by one
MAX_NAME_CHARS = 128
SETTLED_S = 60.0  # what was used just now is not hotter than what was used within this


@dataclass(frozen=True, slots=True)
class Path:
    """tokens: packed, from the first to the end of the last block; first: ordinal of the first block meant; namespace:
    without a tenant's salt."""

    namespace: Namespace
    tenant: str
    fingerprint: bytes
    tokens: bytes
    first: int
    size_bytes: int
    idle_s: float
    heat: float
    retention: Sequence[RetentionRange] = ()

    @property
    def end(self) -> int:
        """Blocks from the first token on."""
        return len(self.tokens) // (4 * self.namespace.layout.block_tokens)

    @property
    def blocks(self) -> int:
        return self.end - self.first


def hottest(
    spaces: Iterable[Residents],
    now: float,
    *,
    max_bytes: int,
    last_only: bool,
    most: int = MAX_PATHS,
) -> list[Path]:
    """Blocks in DRAM of `max_bytes` at most. last_only: none that another node has. O(blocks)."""
    rows = nlargest(
        most, (row for space in spaces for row in _stretches(space, now, last_only)), key=lambda row: row[0]
    )
    paths: list[Path] = []
    for heat, _, space, blocks, first in rows:
        size = len(blocks) * space.size_class.slot_bytes
        if size > max_bytes:
            fits = max_bytes // space.size_class.slot_bytes
            blocks, size = blocks[:fits], fits * space.size_class.slot_bytes
        if not size:
            break
        max_bytes -= size
        paths.append(_path(space, blocks, first, size, now, heat))
    return paths


def _stretches(
    space: Residents, now: float, last_only: bool
) -> Iterator[tuple[float, int, Residents, NDArray[np.int32], int]]:
    """Blocks of a namespace that follow each other and are as hot: heat, something to tell ties apart, whose, numbers,
    first ordinal."""
    index = space.index
    uses, hits, origins = index.col("last_use"), index.col("hits"), index.col("ret.origin")
    for numbers, first, _, _ in index.runs():
        at = numbers.astype(np.intp)
        heat = (1.0 + hits[at]) / (SETTLED_S + np.maximum(now - uses[at], 0.0))
        keep = origins[at] == 0 if last_only else np.ones(len(at), dtype=np.bool_)
        cuts = np.flatnonzero((np.diff(heat) != 0) | np.diff(keep)) + 1
        edges = sorted({0, *cuts.tolist(), *range(0, len(at), MAX_STRETCH_BLOCKS), len(at)})
        for start, end in pairwise(edges):
            if keep[start] and first + end <= MAX_PATH_BLOCKS:
                yield float(heat[start]), -int(numbers[start]), space, numbers[start:end], first + start


def _path(space: Residents, blocks: NDArray[np.int32], first: int, size: int, now: float, heat: float) -> Path:
    index, last = space.index, int(blocks[-1])
    return Path(
        replace(space.namespace, tenant_salt=b""),
        space.tenant.name if space.tenant is not None else "",
        space.fingerprint,
        index.tokens_to(last),
        first,
        size,
        max(0.0, now - float(index.col("last_use")[last])),
        heat,
        tuple(_ranges(index.retention(blocks), first)),
    )


def _ranges(said: Retentions, first: int) -> Iterator[RetentionRange]:
    """What was asked for these blocks, where it is not what everyone gets."""
    if said.usual:
        return
    rows = list(zip(said.priority.tolist(), said.ttl_s.tolist(), said.pinned.tolist(), strict=True))
    start = 0
    for at in range(1, len(rows) + 1):
        if at == len(rows) or rows[at] != rows[start]:
            priority, ttl_s, pinned = rows[start]
            yield RetentionRange(first + start, first + at, Retention(priority, ttl_s, pinned))
            start = at


def pack_path(path: Path) -> pb.HotPath:
    opening = pack_open(path.namespace, "")
    return pb.HotPath(
        space=pb.SharedSpace(
            namespace=opening.namespace,
            hash_name=opening.hash_name,
            tenant=path.tenant,
            fingerprint=path.fingerprint,
        ),
        tokens=path.tokens,
        first=path.first,
        size_bytes=path.size_bytes,
        idle_s=path.idle_s,
        heat=path.heat,
        retention=pack_retention(path.retention[:MAX_RETENTION_RANGES]),
    )


def unpack_path(said: pb.HotPath) -> Path:
    """FrameError or proto's FieldError names what cannot be."""
    namespace = unpack_namespace(pb.Open(namespace=said.space.namespace, hash_name=said.space.hash_name))
    layout = namespace.layout
    tokens = check_tokens(said.tokens)
    end = len(tokens) // (4 * layout.block_tokens)
    if len(tokens) % (4 * layout.block_tokens) or not said.first < end <= MAX_PATH_BLOCKS:
        raise FrameError("tokens", f"blocks {said.first} to {end} are no path of {MAX_PATH_BLOCKS} blocks at most")
    if len(said.space.tenant) > MAX_NAME_CHARS:
        raise FrameError("tenant", f"has more than {MAX_NAME_CHARS} characters")
    if not (math.isfinite(said.idle_s) and said.idle_s >= 0 and math.isfinite(said.heat) and said.heat >= 0):
        raise FrameError("heat", f"{said.heat} and an idle time of {said.idle_s} s are no numbers of a block")
    size = (end - said.first) * layout.slot_bytes
    retention = tuple(unpack_retention(said.retention))
    return Path(
        namespace,
        said.space.tenant,
        said.space.fingerprint,
        tokens,
        said.first,
        size,
        said.idle_s,
        said.heat,
        retention,
    )
