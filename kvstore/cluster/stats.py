"""What a node counts of its cluster, and the frozen picture that status and metrics read."""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field


def _counter() -> Counter[str]:
    return Counter()


@dataclass(slots=True)
class ClusterCounters:
    """They only grow.

    lookups, by what came of them: "found", "nobody" (of those asked for), "skipped" (nothing to ask, or no Valkey: no
    round trip), "deadline", "failed". announced, withdrawn: marks that Valkey took, repetitions included.
    announce_failures: batches it did not. full_announces: times that everything was announced again, by why: "joined"
    (first, or Valkey had lost it), "returned" (it is another process of Valkey), "backlog" (more changes than may
    wait), "refresh". ignored: values from Valkey that are nonsense or of nobody there, by where: "mark", "answer",
    "member". lost: times that Valkey went away. claimed: lookups that made a prompt this node's to compute;
    claims_found: those that found another node computing it.
    """

    lookups: Counter[str] = field(default_factory=_counter)
    announced: int = 0
    withdrawn: int = 0
    announce_failures: int = 0
    full_announces: Counter[str] = field(default_factory=_counter)
    ignored: Counter[str] = field(default_factory=_counter)
    lost: int = 0
    claimed: int = 0
    claims_found: int = 0

    def copy(self) -> "ClusterCounters":
        """As they are now."""
        return deepcopy(self)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """connected: Valkey answers. joined: this node is a member there. members: live nodes, this one included, as last
    known. marks: that this node holds. backlog: changes not announced yet, without what is only repeated. last_error:
    for people, "" = none so far. round_trip_s: of the last renewal; 0 = none yet. address: of Valkey, without password.
    """

    connected: bool
    joined: bool
    members: int
    marks: int
    backlog: int
    last_error: str
    round_trip_s: float
    address: str
