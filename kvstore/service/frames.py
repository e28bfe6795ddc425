"""Frames to values and back. A frame that makes no sense is FrameError, which names the field.

Columns of numbers travel as little-endian arrays, so that numpy turns them into Python's and back in one call.
"""

import math
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...proto import BlockLayout, Namespace, Retention, RetentionRange
from ...proto import kv_pb2 as pb
from ..arena import ArenaView
from ..types import Acquired, Lookup, Miss, Origin, Reserved, Slots, Wait
from .insight_frames import pack_miss, unpack_miss

WIRE_VERSION = 3
MIN_WIRE_VERSION = 1  # the oldest that is still spoken, with engines and with nodes
RECEIPTS_SINCE = 3  # before it nobody reads `served`, and an answer has a reason but no Miss
PACKAGE_VERSION = version("kvterrace")
TOKEN_BYTES = 4
MAX_RETENTION_RANGES = 256  # of one prompt


class FrameError(ValueError):
    """`field` of a frame cannot be what it is."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def common_version(theirs: int) -> int | None:
    """In which version to ask a program of version `theirs`: a later one is taken to speak ours too, until it says
    otherwise. None: it is too old."""
    return min(theirs, WIRE_VERSION) if theirs >= MIN_WIRE_VERSION else None


def pack_column(values: Sequence[int], dtype: str) -> bytes:
    """`values` as a little-endian array of `dtype`, such as "<u8". OverflowError when one does not fit."""
    return np.array(values, dtype=dtype).tobytes()


def unpack_column(data: bytes, dtype: str, field: str) -> list[int]:
    """The numbers of `pack_column`."""
    return _column(data, dtype, field).tolist()


def _column(data: bytes, dtype: str, field: str) -> NDArray[Any]:
    if len(data) % np.dtype(dtype).itemsize:
        raise FrameError(field, f"{len(data)} bytes are not whole {dtype} numbers")
    return np.frombuffer(data, dtype=dtype)


def pack_slots(refs: Slots) -> pb.Slots:
    """Columns of `refs`."""
    return pb.Slots(
        slots=refs.slots.astype("<u8").tobytes(),
        generations=refs.generations.astype("<u4").tobytes(),
        checksums=refs.checksums.astype("<u8").tobytes(),
    )


def unpack_slots(packed: pb.Slots) -> Slots:
    """The rows of `packed`; FrameError when its columns differ in length."""
    columns = (
        _column(packed.slots, "<u8", "slots"),
        _column(packed.generations, "<u4", "generations"),
        _column(packed.checksums, "<u8", "checksums"),
    )
    if len({len(column) for column in columns}) != 1:
        raise FrameError("slots", f"columns of {', '.join(str(len(column)) for column in columns)} entries")
    return Slots(*columns)


def check_tokens(tokens: bytes) -> bytes:
    """`tokens`, when it is whole tokens."""
    if len(tokens) % TOKEN_BYTES:
        raise FrameError("tokens", f"{len(tokens)} bytes are not whole int32 tokens")
    return tokens


def pack_open(namespace: Namespace, client: str) -> pb.Open:
    """What opens a session of `namespace`."""
    layout = namespace.layout
    return pb.Open(
        wire_version=WIRE_VERSION,
        package_version=PACKAGE_VERSION,
        hash_name=namespace.hash_name,
        client=client,
        fingerprint=namespace.fingerprint(),
        namespace=pb.NamespaceSpec(
            weights_digest=namespace.weights_digest,
            adapter_digest=namespace.adapter_digest,
            kv_heads=layout.kv_heads,
            layers=layout.layers,
            planes=layout.planes,
            block_tokens=layout.block_tokens,
            head_dim=layout.head_dim,
            dtype=layout.dtype,
            first_layer=namespace.first_layer,
            producer=namespace.producer,
            label=namespace.label,
        ),
    )


def unpack_namespace(opening: pb.Open) -> Namespace:
    """The namespace that `opening` describes; proto's FieldError when it cannot be."""
    spec = opening.namespace
    layout = BlockLayout(
        kv_heads=spec.kv_heads,
        layers=spec.layers,
        planes=spec.planes,
        block_tokens=spec.block_tokens,
        head_dim=spec.head_dim,
        dtype=spec.dtype,
    )
    return Namespace(
        weights_digest=spec.weights_digest,
        layout=layout,
        adapter_digest=spec.adapter_digest,
        first_layer=spec.first_layer,
        producer=spec.producer,
        hash_name=opening.hash_name,
        label=spec.label,
    )


def pack_found(found: Lookup) -> pb.Found:
    return pb.Found(
        tiers=dict(found.tiers),
        reason=found.reason,
        compute_s=found.compute_s,
        load_s=found.load_s,
        miss=pack_miss(found.miss),
    )


def unpack_found(frame: pb.Found) -> Lookup:
    miss = unpack_miss(frame.miss) if frame.HasField("miss") else None
    return Lookup(dict(frame.tiers), frame.reason, frame.compute_s, frame.load_s, miss)


def pack_acquire(tokens: bytes, skip: int, deadline_s: float, wait: Wait | None, origin: Origin | None) -> pb.Acquire:
    asked = pb.Acquire(tokens=tokens, skip=skip, deadline_s=deadline_s, wait=pack_wait(wait))
    if origin is not None:
        asked.request_id, asked.traceparent = origin.request_id, origin.traceparent
    return asked


def unpack_origin(asked: pb.Acquire) -> Origin | None:
    return Origin(asked.request_id, asked.traceparent) if asked.request_id or asked.traceparent else None


def pack_retention(ranges: Sequence[RetentionRange]) -> list[pb.RetentionRange]:
    return [
        pb.RetentionRange(
            start=each.start,
            end=each.end,
            retention=pb.RetentionSpec(
                priority=each.retention.priority, ttl_s=each.retention.ttl_s, pinned=each.retention.pinned
            ),
        )
        for each in ranges
    ]


def unpack_retention(packed: Sequence[pb.RetentionRange]) -> list[RetentionRange]:
    """proto's FieldError for a range or a wish that cannot be."""
    if len(packed) > MAX_RETENTION_RANGES:
        raise FrameError("retention", f"{len(packed)} ranges are above {MAX_RETENTION_RANGES}")
    return [
        RetentionRange(
            each.start, each.end, Retention(each.retention.priority, each.retention.ttl_s, each.retention.pinned)
        )
        for each in packed
    ]


def pack_acquired(given: Acquired) -> pb.Acquired:
    return pb.Acquired(
        lease=given.lease,
        first=given.first,
        slots=pack_slots(given.slots),
        tiers=dict(given.tiers),
        reason=given.reason,
        compute_s=given.compute_s,
        wait=pack_wait(given.wait),
        miss=pack_miss(given.miss),
    )


def pack_wait(wait: Wait | None) -> pb.Wait | None:
    if wait is None:
        return None
    return pb.Wait(
        ticket=wait.ticket, waited_s=wait.waited_s, had=wait.had, until=wait.until, expected_s=wait.expected_s
    )


def unpack_wait(frame: pb.Acquire | pb.Acquired) -> Wait | None:
    """FrameError when its times are none."""
    wait = frame.wait
    if not frame.HasField("wait"):
        return None
    if not (0 <= wait.waited_s < math.inf and 0 <= wait.expected_s < math.inf and wait.had <= wait.until):
        raise FrameError("wait", "its times must be finite, and had not above until")
    return Wait(wait.ticket, wait.waited_s, wait.had, wait.until, wait.expected_s)


def unpack_acquired(frame: pb.Acquired, lease: int, arena: ArenaView, block_tokens: int) -> Acquired:
    """With `lease` in place of the server's own number, and with a Miss wherever there is a reason: older servers say
    none."""
    tiers = dict(sorted(frame.tiers.items(), key=lambda row: row[0] != "dram"))  # a map has no order; DRAM comes first
    slots, wait = unpack_slots(frame.slots), unpack_wait(frame)
    miss = unpack_miss(frame.miss) if frame.HasField("miss") else None
    if miss is None and frame.reason and wait is None:
        miss = Miss(frame.reason, (frame.first + len(slots)) * block_tokens)
    return Acquired(lease, frame.first, slots, tiers, frame.reason, arena, frame.compute_s, wait, miss)


def pack_reserved(given: Reserved) -> pb.Reserved:
    return pb.Reserved(
        lease=given.lease,
        blocks=pack_column(given.blocks, "<u4"),
        slots=pack_slots(given.slots),
        reason=given.reason,
    )


def unpack_reserved(frame: pb.Reserved, lease: int, arena: ArenaView) -> Reserved:
    """With `lease` in place of the server's own number."""
    blocks = tuple(unpack_column(frame.blocks, "<u4", "blocks"))
    return Reserved(lease, blocks, unpack_slots(frame.slots), frame.reason, arena)
