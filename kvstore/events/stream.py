"""The feed on the wire: EventsRequest to subscription, batches to EventBatch."""

from collections.abc import AsyncGenerator, Callable, Iterator

from ...proto import kv_pb2 as pb
from ...radix import TOKEN_BYTES
from ..security.identity import Identity, Role
from .feed import Feed
from .sight import Sees, everything
from .types import Batch, Event, Kind

TIERS = {"hbm", "dram", "nvme", "remote"}
MAX_EPOCH_BYTES = 64
_KINDS = {Kind.STORED: pb.BlockEvent.STORED, Kind.REMOVED: pb.BlockEvent.REMOVED, Kind.CLEARED: pb.BlockEvent.CLEARED}
FINGERPRINT_BYTES = 32


class Streams:
    """Answers Events. label_of: of a namespace, "" = not known."""

    def __init__(self, feed: Feed, label_of: Callable[[bytes], str]) -> None:
        self.feed = feed
        self._label_of = label_of

    def refuses(self, request: pb.EventsRequest, who: Identity) -> str:
        """What is wrong with it, beginning with the field; "" = nothing."""
        if len(request.epoch) > MAX_EPOCH_BYTES:
            return f"epoch: must have {MAX_EPOCH_BYTES} bytes at most"
        if len(request.fingerprint) not in (0, FINGERPRINT_BYTES):
            return f"fingerprint: must have {FINGERPRINT_BYTES} bytes or none, not {len(request.fingerprint)}"
        if request.tokens and Role.OPERATOR not in who.roles:
            return f"tokens: they are prompts, which only the role {Role.OPERATOR} may have"
        unknown = sorted(set(request.tiers) - TIERS)
        return f"tiers: there is no {unknown[0][:20]!r}" if unknown else ""

    async def events(self, request: pb.EventsRequest, sees: Sees = everything) -> AsyncGenerator[pb.EventBatch]:
        """Until the feed or the caller ends it. sees: which namespaces the caller may be told of. FeedFull."""
        subscription = self.feed.subscribe(request.epoch, request.next)
        try:
            while (batch := await subscription.next()) is not None:
                packed = self._pack(batch, request, sees)
                if packed.events or batch.snapshot:
                    yield packed
        finally:
            subscription.close()

    def close(self) -> None:
        """End all streams."""
        self.feed.close()

    def _pack(self, batch: Batch, request: pb.EventsRequest, sees: Sees) -> pb.EventBatch:
        return pb.EventBatch(
            node=self.feed.node,
            epoch=self.feed.epoch,
            sequence=batch.sequence,
            timestamp_s=batch.timestamp_s,
            events=self._wanted(batch, request, sees),
            reset=batch.reset,
            snapshot=batch.snapshot,
            more=batch.more,
        )

    def _wanted(self, batch: Batch, request: pb.EventsRequest, sees: Sees) -> Iterator[pb.BlockEvent]:
        for event in batch.events:
            if request.fingerprint and event.fingerprint != request.fingerprint:
                continue
            if (not request.tiers or event.tier in request.tiers) and sees(event.fingerprint):
                yield self._event(event, tokens=request.tokens)

    def _event(self, event: Event, *, tokens: bool) -> pb.BlockEvent:
        return pb.BlockEvent(
            kind=_KINDS[event.kind],
            tier=event.tier,
            fingerprint=event.fingerprint,
            label=self._label_of(event.fingerprint),
            count=event.count,
            keys=event.keys,
            parent=event.parent,
            first=event.first,
            tokens=event.tokens if tokens else b"",
            block_tokens=block_tokens(event),
            session=event.engine.session,
            engine=event.engine.name,
        )


def block_tokens(event: Event) -> int:
    """Tokens of a block, as far as the event tells."""
    return len(event.tokens) // TOKEN_BYTES // event.count if event.tokens else 0
