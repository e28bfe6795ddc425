"""The bounds of one connector: every wait, queue and backlog it has is limited by a number in here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConnectorLimits:
    """All positive, but for two: an acquire_deadline_s of 0 means that no fetch ever waits for the store, a
    compute_wait_s of 0 that none waits for other engines.

    acquire_deadline_s, load_base_s, load_bytes_per_s: from fetch() to its Offer, n bytes may take acquire_deadline_s
        + n / load_bytes_per_s, since the store may have to read them from a disk; a load may take load_base_s
        + n / load_bytes_per_s, and blocks whose copy has not begun by then are given up. What does not pay within
        that is not begun: the store knows what reading and computing take. An Offer is given up earlier once
        acquire_deadline_s and what computing those tokens takes (if known) are over: a hung store costs no more.
    save_deadline_s:     for each of the store's two answers to a save (reserve, commit), for its copy, and for a hint.
    save_backlog_bytes:  bytes of saves in flight; a save that would exceed it is dropped, unless it is the only one.
    max_calls:           fetches, saves and hints waiting for the store; one more is answered "busy".
    max_prefetches:      prefetches that stand; one more is not taken.
    observe_every_s:     how long prefill observations are collected before they are sent together.
    compute_wait_s:      how long a fetch waits, all told, for others who compute what it asks for; it waits no longer
                         than computing would take anyway, as the store knows it. 0 = it never does.
    late_s:              how long a late answer is awaited, so that the lease it brings is given back.
    copy_threads:        threads that copy and verify.
    close_s:             how long close() waits for saves in flight, and again for the store's goodbye.
    """

    acquire_deadline_s: float = 0.25
    load_base_s: float = 1.0
    load_bytes_per_s: float = 100e6
    save_deadline_s: float = 2.0
    save_backlog_bytes: int = 1 << 30
    max_calls: int = 1024
    max_prefetches: int = 256
    observe_every_s: float = 0.1
    compute_wait_s: float = 120.0
    late_s: float = 30.0
    copy_threads: int = 2
    close_s: float = 2.0

    def fetch_s(self, size_bytes: int) -> float:
        """How long an Offer of so many bytes is waited for."""
        return self.acquire_deadline_s + size_bytes / self.load_bytes_per_s if self.acquire_deadline_s else 0.0

    def load_s(self, size_bytes: int) -> float:
        """How long a load of so many bytes may take."""
        return self.load_base_s + size_bytes / self.load_bytes_per_s

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value: float = getattr(self, name)
            if value < 0 or (value == 0 and name not in {"acquire_deadline_s", "compute_wait_s"}):
                raise ValueError(f"{name} must be positive, not {value}")
