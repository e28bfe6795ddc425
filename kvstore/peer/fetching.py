"""Fetching: the holder's side of Fetch: lends blocks, and sends them or a ticket for them. Lives on the store's loop.

A loan ends when its bytes are sent, when the call ends, or at the asker's deadline, whatever the call does then: a
reader that stalls keeps no block. A loan that a ticket was given for is the tickets' business.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...proto import kv_pb2 as pb
from ..lending import Lender, Loan
from ..service.frames import (
    MIN_WIRE_VERSION,
    PACKAGE_VERSION,
    WIRE_VERSION,
    FrameError,
    check_tokens,
    pack_column,
)
from ..tracing import OFF, Span, Tracer
from .counts import BULK, GRPC, LendCounts

MAX_BLOCKS = 4096  # of one call
MAX_DEADLINE_S = 60.0
MAX_NODE_CHARS = 128
MAX_WAIT_S = 5.0  # of a question how far this node is
MAX_STREAMS = 16  # calls at once that send bytes themselves
CHUNK_BYTES = 256 << 10
LEND_SHARE = 0.5  # of the deadline; what is left is for the bytes
_FINGERPRINT_BYTES = 32


Tell = Callable[[bytes, bytes, int, float], Awaitable[tuple[int, float]]]
"""See following.Progress."""


class Issuer(Protocol):
    """Who gives tickets for loans."""

    def issue(self, loan: Loan, peer: str) -> bytes | None:
        """A ticket, which owns the loan from now on. None: too much is lent; the loan stays the caller's."""
        ...

    def revoke(self, ticket: bytes) -> None:
        """End the loan, unless the ticket was used."""
        ...


class Fetching:
    """Answers Fetch out of `lender`. tickets, bulk_address: the bulk channel, if there is one."""

    def __init__(self, lender: Lender, tickets: Issuer | None = None, bulk_address: str = "") -> None:
        self._lender = lender
        self._tickets = tickets
        self._bulk_address = bulk_address
        self._streams = 0
        self.tracer: Tracer = OFF
        self.progress: Tell | None = None
        """What answers how far this node is with computing a prompt; None: it computes nothing."""
        self.counts = LendCounts()

    async def fetch(self, request: pb.FetchRequest) -> AsyncGenerator[pb.FetchPart]:
        """The parts of the answer. Close it (contextlib.aclosing) when the call ends early."""
        refused = _refusal(request)
        if refused is not None:
            self.counts.refused[refused.field] += 1
            yield pb.FetchPart(refused=refused)
            return
        if request.wait_s > 0:
            yield pb.FetchPart(offer=await self._tell(request))
            return
        span = self.tracer.start("lend", request.traceparent, node=request.node)
        try:
            loan = await self._lend(request, span)
            if loan is None or not loan.blocks:
                if loan is not None:
                    loan.release()
                yield pb.FetchPart(offer=pb.Offer())
                return
            span.set(blocks=len(loan.blocks), bytes=loan.size_bytes)
            async with aclosing(self._lent(request, loan)) as parts:
                async for part in parts:
                    yield part
        finally:
            span.end()

    async def _lend(self, request: pb.FetchRequest, span: Span) -> Loan | None:
        with span.child("bring"):
            return await self._lender.lend(
                request.fingerprint,
                request.tokens,
                request.first,
                max_blocks=MAX_BLOCKS,
                deadline_s=request.deadline_s * LEND_SHARE,
            )

    async def _tell(self, request: pb.FetchRequest) -> pb.Offer:
        if self.progress is None:
            return pb.Offer()
        wait_s = min(request.wait_s, MAX_WAIT_S)
        blocks, seconds = await self.progress(request.fingerprint, request.tokens, request.first, wait_s)
        return pb.Offer(count=blocks, computing_s=seconds)

    async def _lent(self, request: pb.FetchRequest, loan: Loan) -> AsyncGenerator[pb.FetchPart]:
        held = _Held(loan, request.deadline_s)
        try:
            offer = _offer(loan)
            ticket = self._ticket(request, loan)
            if ticket is not None:
                held.hand_over()
                self._count(BULK, loan)
                offer.ticket, offer.bulk_address = ticket, self._bulk_address
                parts = self._ticketed(offer)
            else:
                parts = self._streamed(offer, loan, held)
            async with aclosing(parts):
                async for part in parts:
                    yield part
        finally:
            held.end()

    def _ticket(self, request: pb.FetchRequest, loan: Loan) -> bytes | None:
        return self._tickets.issue(loan, request.node) if request.bulk and self._tickets is not None else None

    async def _ticketed(self, offer: pb.Offer) -> AsyncGenerator[pb.FetchPart]:
        said = False
        try:
            yield pb.FetchPart(offer=offer)
            said = True
        finally:
            if not said and self._tickets is not None:
                self._tickets.revoke(offer.ticket)

    async def _streamed(self, offer: pb.Offer, loan: Loan, held: "_Held") -> AsyncGenerator[pb.FetchPart]:
        if self._streams >= MAX_STREAMS:
            self.counts.refused["busy"] += 1
            yield pb.FetchPart(refused=pb.Refused(field="busy", message=f"{MAX_STREAMS} calls are being served"))
            return
        self._count(GRPC, loan)
        self._streams += 1
        try:
            yield pb.FetchPart(offer=offer)
            chunks = _cut(loan.blocks)
            while not held.over and (data := next(chunks, None)) is not None:
                yield pb.FetchPart(chunk=pb.Chunk(data=data))
        finally:
            self._streams -= 1

    def _count(self, way: str, loan: Loan) -> None:
        self.counts.lent_blocks[way] += len(loan.blocks)
        self.counts.lent_bytes[way] += loan.size_bytes


class _Held:
    """A loan that ends at the deadline at the latest. over: it has; nothing of it may be read."""

    def __init__(self, loan: Loan, seconds: float) -> None:
        self._loan = loan
        self.over = False
        self._timer = asyncio.get_running_loop().call_later(seconds, self.end)

    def end(self) -> None:
        if not self.over:
            self.hand_over()
            self._loan.release()

    def hand_over(self) -> None:
        """Someone else ends it."""
        self.over = True
        self._timer.cancel()


def _refusal(request: pb.FetchRequest) -> pb.Refused | None:
    """What stands against the request."""
    if not MIN_WIRE_VERSION <= request.wire_version <= WIRE_VERSION:
        ours, theirs = str(WIRE_VERSION), str(request.wire_version)
        message = f"this node (kvterrace {PACKAGE_VERSION}) speaks version {ours}, the asker version {theirs}"
        return pb.Refused(field="wire_version", message=message, ours=ours, theirs=theirs)
    try:
        check_tokens(request.tokens)
    except FrameError as error:
        return pb.Refused(field=error.field, message=error.message)
    if len(request.fingerprint) != _FINGERPRINT_BYTES:
        size = len(request.fingerprint)
        return pb.Refused(field="fingerprint", message=f"must have {_FINGERPRINT_BYTES} bytes, not {size}")
    if not 0 <= request.wait_s <= MAX_DEADLINE_S:
        return pb.Refused(field="wait_s", message=f"must be between 0 and {MAX_DEADLINE_S:.0f}")
    if not (math.isfinite(request.deadline_s) and 0 <= request.deadline_s <= MAX_DEADLINE_S):
        return pb.Refused(field="deadline_s", message=f"must be between 0 and {MAX_DEADLINE_S:.0f}")
    if not 0 < len(request.node) <= MAX_NODE_CHARS:
        return pb.Refused(field="node", message=f"must have 1 to {MAX_NODE_CHARS} characters")
    return None


def _offer(loan: Loan) -> pb.Offer:
    return pb.Offer(
        count=len(loan.blocks),
        block_bytes=loan.blocks[0].nbytes,
        checksums=pack_column(loan.checksums, "<u8"),
        keys=b"".join(loan.keys),
    )


def _cut(blocks: Sequence[NDArray[np.uint8]]) -> Iterator[bytes]:
    """Copies of their bytes, one after the other, CHUNK_BYTES at a time. Reads no further than what it has given."""
    pieces: list[memoryview] = []
    size = 0
    for block in blocks:
        left: memoryview[Any] = block.data
        while left:
            piece, left = left[: CHUNK_BYTES - size], left[CHUNK_BYTES - size :]
            pieces.append(piece)
            size += len(piece)
            if size == CHUNK_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)
