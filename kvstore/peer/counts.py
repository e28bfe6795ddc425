"""What fetching from other nodes, and lending to them, comes to: since the start, over all peers. Only grows."""

from collections import Counter, defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

BULK = "bulk"
GRPC = "grpc"


def _by_way() -> Counter[str]:
    return Counter()


def _by_way_and_reason() -> Counter[tuple[str, str]]:
    return Counter()


def _seconds() -> defaultdict[str, float]:
    return defaultdict(float)


@dataclass(slots=True)
class FetchCounts:
    """read_bytes, read_s: of transfers that came whole, by way ("bulk", "grpc"); transfers overlap. fetches: runs of
    blocks asked for, by way and outcome: "ok"; with the way "bulk", BulkError's reasons; with the way "none",
    PeerError's reasons, "empty" (the peer has none of it), "breaker" and "queue" (no room in time). A run that fell
    back counts in both ways. corrupt_blocks: that came and were not what their checksums say."""

    read_bytes: Counter[str] = field(default_factory=_by_way)
    read_s: defaultdict[str, float] = field(default_factory=_seconds)
    fetches: Counter[tuple[str, str]] = field(default_factory=_by_way_and_reason)
    corrupt_blocks: int = 0

    @contextmanager
    def transfer(self, way: str, size_bytes: int, clock: Callable[[], float]) -> Generator[None]:
        """Count what happens inside as one transfer, if it comes whole."""
        started = clock()
        yield
        self.read_s[way] += clock() - started
        self.read_bytes[way] += size_bytes
        self.fetches[way, "ok"] += 1


@dataclass(slots=True)
class LendCounts:
    """lent_blocks, lent_bytes: offered, by way. refused: requests by the field that stood against them, and "busy"."""

    lent_blocks: Counter[str] = field(default_factory=_by_way)
    lent_bytes: Counter[str] = field(default_factory=_by_way)
    refused: Counter[str] = field(default_factory=_by_way)
