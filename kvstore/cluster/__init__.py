"""The cluster: who is there, who has which blocks, kept in Valkey.

Marks are what is announced; the directory holds them, the announcer says them, the membership says whom to believe.
"""

from .address import Address, parse_address
from .cluster import Cluster
from .membership import Member, NodeTaken, new_epoch
from .stats import ClusterCounters, ClusterStatus

__all__ = [
    "Address",
    "Cluster",
    "ClusterCounters",
    "ClusterStatus",
    "Member",
    "NodeTaken",
    "new_epoch",
    "parse_address",
]
