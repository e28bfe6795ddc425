"""CostModel: what computing tokens takes, what loading bytes takes, and so which of the two is worth doing.

Learned from what engines report and from what the tiers measure; nothing is assumed about the machine. What is not
known yet is said to be 0.0, and then loading is tried, since that is how it becomes known. No clock, no I/O: the
simulator runs the same object. Belongs to one thread.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Literal

from ..spread import LATENCY_BOUNDS_S, Spread
from .fit import LinearFit

Direction = Literal["read", "write"]

# Observations before a figure is trusted to decide anything.
KNOWN_PREFILLS = 4
KNOWN_TRANSFERS = 2
LONGEST_S = 3600.0  # an observation above it is a mistake of the reporter's clock

# Loading is given up once it is clearly slower than computing, and taken up again once it is clearly faster.
GIVE_UP, TAKE_UP = 1.1, 0.9
# Of the compute time of what was declined, the share that trying a slow tier again may cost: so that one that has
# recovered is noticed, and one that has not is hardly felt.
PROBE_SHARE = 0.02
PROBE_LOSS_CAP_S = 1.0  # no try costs more: the caller's deadline ends it


@dataclass(frozen=True, slots=True)
class TierCost:
    """latency_s a call and bytes_per_s, as measured; 0 = not measured."""

    latency_s: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CostSnapshot:
    """prefill_s_per_token: without context; attention_s_per_token2: for each token of context, a token more; call_s: a
    call, however short. reads, writes: by tier. slow: tiers that lose against computing at present."""

    prefill_s_per_token: float
    attention_s_per_token2: float
    call_s: float
    prefills: int
    reads: Mapping[str, TierCost]
    writes: Mapping[str, TierCost]
    slow: tuple[str, ...]


class Lane:
    """Transfers side by side, each charged its share of the time: of two that overlap, half the overlap each. The sum
    of the shares is the time in which anything was transferred, so that eight at once are not taken for a device that
    is eight times slower. (Processor sharing by virtual time: one number moves, whatever the number of transfers.)"""

    def __init__(self) -> None:
        self._active = 0
        self._at = 0.0
        self._virtual_s = 0.0

    def begin(self, now: float) -> float:
        """A mark for end()."""
        self._move(now)
        self._active += 1
        return self._virtual_s

    def end(self, mark: float, now: float) -> float:
        """Seconds of this transfer's share."""
        self._move(now)
        self._active -= 1
        return self._virtual_s - mark

    def _move(self, now: float) -> None:
        if self._active:
            self._virtual_s += (now - self._at) / self._active
        self._at = now


@dataclass(slots=True)
class Measured:
    """size_bytes: what a transfer moved, to be set before it ends; 0 = it tells nothing (it failed)."""

    size_bytes: int = 0


class IoCost:
    """Latency and bandwidth of each tier and direction. One for all namespaces of a store: they share the devices."""

    def __init__(self) -> None:
        self._fits: dict[tuple[str, Direction], LinearFit] = {}
        self._lanes: dict[tuple[str, Direction], Lane] = {}
        self._latencies: dict[tuple[str, str], Spread] = {}

    @contextmanager
    def measure(self, tier: str, direction: Direction, clock: Callable[[], float]) -> Generator[Measured, None, None]:
        """Around one transfer; those that overlap share the time."""
        lane = self._lanes.setdefault((tier, direction), Lane())
        began, measured = clock(), Measured()
        mark = lane.begin(began)
        try:
            yield measured
        finally:
            ended = clock()
            self.observe(tier, measured.size_bytes, lane.end(mark, ended), direction)
            if measured.size_bytes:
                self._latencies.setdefault((tier, direction), Spread(LATENCY_BOUNDS_S)).add(ended - began)

    def observe(self, tier: str, size_bytes: int, seconds: float, direction: Direction) -> None:
        """One transfer took so long, alone. Nonsense is ignored."""
        if size_bytes <= 0 or not 0 < seconds <= LONGEST_S:
            return
        fit = self._fits.get((tier, direction))
        if fit is None:
            fit = self._fits[tier, direction] = LinearFit((1e6, 1.0), half_life=16)
        fit.observe((size_bytes, 1.0), seconds)

    def seconds(self, tier: str, size_bytes: int, direction: Direction) -> float:
        """One transfer of so many bytes; 0.0 = not known."""
        fit = self._fits.get((tier, direction))
        return 0.0 if fit is None or fit.count < KNOWN_TRANSFERS else fit.predict((size_bytes, 1.0))

    def latencies(self) -> dict[tuple[str, str], Spread]:
        """Seconds from the beginning to the end of each transfer that moved something, by tier and direction."""
        return deepcopy(self._latencies)

    def tiers(self, direction: Direction) -> dict[str, TierCost]:
        costs: dict[str, TierCost] = {}
        for (tier, way), fit in self._fits.items():
            if way == direction:
                per_byte, latency = fit.coefficients
                costs[tier] = TierCost(latency, 1.0 / per_byte if per_byte > 0 else 0.0)
        return costs


class CostModel:
    """Of one namespace (a model's prefill has its own speed). io: shared with the other namespaces; None: its own."""

    def __init__(self, io: IoCost | None = None) -> None:
        self._io = io if io is not None else IoCost()
        # tokens; pairs of a token and one before it; calls
        self._prefill = LinearFit((1e3, 1e6, 1.0))
        self._call_tokens = 0.0  # of the longest recent calls: how a long prompt is cut
        self._slow: dict[str, float] = {}  # tiers given up, with the seconds that their next try may lose

    def observe_prefill(self, first: int, tokens: int, seconds: float) -> None:
        """An engine computed `tokens` tokens behind a context of `first` in one call. Nonsense is ignored."""
        if first < 0 or tokens < 1 or not 0 < seconds <= LONGEST_S:
            return
        self._prefill.observe((tokens, tokens * (first + tokens / 2), 1.0), seconds)
        self._call_tokens = max(tokens, self._call_tokens * 0.99)

    def observe_io(self, tier: str, size_bytes: int, seconds: float, direction: Direction) -> None:
        """A tier moved so many bytes in one batch."""
        self._io.observe(tier, size_bytes, seconds, direction)

    def compute_s(self, first: int, tokens: int) -> float:
        """Seconds that computing `tokens` tokens behind `first` others adds to a prefill that takes place anyway (its
        calls are counted by their share, since at least one token is always computed); 0.0 = not known yet."""
        if self._prefill.count < KNOWN_PREFILLS or tokens <= 0:
            return 0.0
        return self._prefill.predict((tokens, tokens * (first + tokens / 2), tokens / self._call_tokens))

    @property
    def call_tokens(self) -> float:
        """Tokens of the longest recent calls: in such pieces a long prompt is computed. 0.0 = none seen."""
        return self._call_tokens

    def load_s(self, tier: str, size_bytes: int) -> float:
        """Seconds to bring so many bytes up from a tier in one batch; 0.0 = not known yet."""
        return self._io.seconds(tier, size_bytes, "read") if size_bytes > 0 else 0.0

    def saved_s(self, tier: str, first_token: int, tokens: int, size_bytes: int) -> float:
        """What loading gains over computing, in seconds; negative when it loses, 0.0 while computing is not known."""
        compute_s = self.compute_s(first_token, tokens)
        return compute_s - self.load_s(tier, size_bytes) if compute_s else 0.0

    def worth_loading(self, tier: str, first_token: int, tokens: int, size_bytes: int) -> bool:
        """Whether to load tokens first_token .. first_token+tokens-1 instead of computing them. Unknown is yes.

        Keeps its mind while the two are about equal. A tier that was given up is tried again now and then; ask once
        for each load that would take place.
        """
        compute_s, load_s = self.compute_s(first_token, tokens), self.load_s(tier, size_bytes)
        if not compute_s or not load_s:
            return True
        if load_s <= compute_s * (TAKE_UP if tier in self._slow else GIVE_UP):
            self._slow.pop(tier, None)
            return True
        credit_s = self._slow.get(tier, 0.0) + compute_s * PROBE_SHARE
        loss_s = min(load_s - compute_s, PROBE_LOSS_CAP_S)
        probe = credit_s >= loss_s
        self._slow[tier] = credit_s - max(loss_s, 0.0) if probe else credit_s
        return probe

    def snapshot(self) -> CostSnapshot:
        per_token, per_pair, per_call = self._prefill.coefficients
        return CostSnapshot(
            prefill_s_per_token=per_token,
            attention_s_per_token2=per_pair,
            call_s=per_call,
            prefills=self._prefill.count,
            reads=self._io.tiers("read"),
            writes=self._io.tiers("write"),
            slow=tuple(sorted(self._slow)),
        )
