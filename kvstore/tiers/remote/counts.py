"""What is counted about the remote tier, beside what the store counts of every tier."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class RemoteCounts:
    """Only grow. failures: by (operation: "read", "write", "lookup", "remove", "count"; reason). bad_objects: found
    torn, flipped or foreign, and removed. lookups: questions how much of a prompt is there, by outcome: "found",
    "nobody", "remembered" (as absent), "failed". uploaded_blocks: written; present_blocks: found to be there already;
    dropped_uploads: blocks not written, by reason."""

    failures: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    bad_objects: Counter[str] = field(default_factory=Counter[str])
    lookups: Counter[str] = field(default_factory=Counter[str])
    lookup_s: float = 0.0
    uploaded_blocks: int = 0
    present_blocks: int = 0
    dropped_uploads: Counter[str] = field(default_factory=Counter[str])
