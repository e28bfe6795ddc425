"""HBM reports to frames and back."""

from collections.abc import Sequence

import numpy as np

from ...proto import kv_pb2 as pb
from ...radix import TOKEN_BYTES
from ..service.frames import FrameError
from ..types import HbmChange

MAX_CHANGES = 65_536  # of one report


def pack_hbm(changes: Sequence[HbmChange], *, whole: bool) -> pb.HbmReport:
    """For a session's stream."""
    rows = [
        pb.HbmChange(numbers=each.numbers.astype("<u4").tobytes(), tokens=each.tokens, parent=each.parent)
        for each in changes
    ]
    return pb.HbmReport(whole=whole, changes=rows)


def unpack_hbm(report: pb.HbmReport) -> list[HbmChange]:
    """FrameError names what cannot be; whether it fits the namespace is the store's to say."""
    if len(report.changes) > MAX_CHANGES:
        raise FrameError("changes", f"{len(report.changes)} are more than the {MAX_CHANGES} of a report")
    return [_change(each) for each in report.changes]


def _change(packed: pb.HbmChange) -> HbmChange:
    if len(packed.numbers) % 4:
        raise FrameError("numbers", f"{len(packed.numbers)} bytes are not whole uint32 numbers")
    if len(packed.tokens) % TOKEN_BYTES:
        raise FrameError("tokens", f"{len(packed.tokens)} bytes are not whole int32 tokens")
    return HbmChange(np.frombuffer(packed.numbers, dtype="<u4"), packed.tokens, packed.parent)
