"""What a replay is given, and what it comes to."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from ..placement import Admission, AdmitAll, CostModel
from ..placement.policies import MakePolicy
from .trace import Request


@dataclass(frozen=True, slots=True)
class Speeds:
    """What the machine does in a second. prefill_tokens_per_s: 0 = not known, then nothing is said about seconds."""

    prefill_tokens_per_s: float = 0.0
    dram_bytes_per_s: float = 20e9
    nvme_bytes_per_s: float = 3e9

    def model(self) -> CostModel:
        """A cost model that has learned these speeds."""
        cost = CostModel()
        for tokens in (512, 4096, 1024, 2048, 512, 4096) if self.prefill_tokens_per_s else ():
            cost.observe_prefill(0, tokens, tokens / self.prefill_tokens_per_s)
        for tier, speed in (("dram", self.dram_bytes_per_s), ("nvme", self.nvme_bytes_per_s)):
            for size in (1 << 20, 1 << 24, 1 << 22):
                cost.observe_io(tier, size, size / speed, "read")
        return cost


@dataclass(frozen=True, slots=True)
class Setup:
    """A store to simulate.

    block_tokens, block_bytes: tokens, and bytes of KV, that a block of the trace stands for.
    nvme_blocks: 0 = there is none.
    exclusive: blocks go to NVMe only when they are about to leave DRAM, and leave it when they come up.
    in_flight_share, spare_share: of DRAM, what one request may bring up at once, and what is kept free by writing ahead
    of eviction (exclusive). As in the store.
    """

    policy: MakePolicy
    block_tokens: int
    block_bytes: int
    dram_blocks: int
    nvme_blocks: int = 0
    admission: Callable[[], Admission] = AdmitAll
    exclusive: bool = False
    speeds: Speeds = Speeds()
    in_flight_share: float = 0.5
    spare_share: float = 1 / 16

    @property
    def max_in_flight(self) -> int:
        return int(self.dram_blocks * self.in_flight_share)

    @property
    def spare_blocks(self) -> int:
        return int(self.dram_blocks * self.spare_share)


@dataclass(slots=True)
class Outcome:
    """Counters are by tier; hit_tokens and computed_tokens sum to input_tokens. read_bytes of DRAM: what engines and
    writes to NVMe took; of NVMe: what came up. refused: blocks that were to be written to NVMe and were not, by reason.
    slower_to_load_blocks: left on NVMe, since computing them takes less. Tokens by agent: its position in the trace.
    The seconds are 0 when the prefill speed is not known: saved_s is what computing the hit tokens would have taken,
    less load_s, and may be negative."""

    requests: int = 0
    blocks: int = 0
    input_tokens: int = 0
    hit_blocks: Counter[str] = field(default_factory=Counter[str])
    hit_tokens: Counter[str] = field(default_factory=Counter[str])
    computed_tokens: int = 0
    evictions: Counter[str] = field(default_factory=Counter[str])
    evictions_reused: Counter[str] = field(default_factory=Counter[str])
    read_bytes: Counter[str] = field(default_factory=Counter[str])
    written_bytes: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    slower_to_load_blocks: int = 0
    agent_tokens: Counter[int] = field(default_factory=Counter[int])
    agent_hit_tokens: Counter[int] = field(default_factory=Counter[int])
    compute_s: float = 0.0
    load_s: float = 0.0
    saved_s: float = 0.0

    @property
    def hit_rate(self) -> float:
        """Share of all blocks."""
        return self.hit_blocks.total() / self.blocks if self.blocks else 0.0

    @property
    def token_hit_rate(self) -> float:
        """Share of all tokens."""
        return self.hit_tokens.total() / self.input_tokens if self.input_tokens else 0.0

    def move(self, source: str, target: str, blocks: int, block_bytes: int) -> None:
        """So many blocks were copied from one tier to the other."""
        self.read_bytes[source] += blocks * block_bytes
        self.written_bytes[target] += blocks * block_bytes

    def count(self, request: Request, setup: Setup, found: int, promoted: int) -> None:
        """A request had `found` blocks in DRAM and got `promoted` more from NVMe."""
        from_dram = min(found * setup.block_tokens, request.input_tokens)
        hit = min((found + promoted) * setup.block_tokens, request.input_tokens)
        self.requests += 1
        self.blocks += request.count
        self.input_tokens += request.input_tokens
        self.hit_blocks["dram"] += found
        self.hit_tokens["dram"] += from_dram
        if promoted:
            self.hit_blocks["nvme"] += promoted
            self.hit_tokens["nvme"] += hit - from_dram
        self.computed_tokens += request.input_tokens - hit
        self.read_bytes["dram"] += (found + promoted) * setup.block_bytes
        self.agent_tokens[request.agent] += request.input_tokens
        self.agent_hit_tokens[request.agent] += hit
