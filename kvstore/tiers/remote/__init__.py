"""The remote tier: a store of last resort, shared across hosts and clusters."""

from .address import DirectoryAddress, RemoteAddress, S3Address, ValkeyAddress, parse_remote
from .counts import RemoteCounts
from .directory import Directory
from .envelope import Envelope
from .objects import Name, Objects, Trouble
from .threads import OnThreads
from .tier import RemoteTier

__all__ = [
    "Directory",
    "DirectoryAddress",
    "Envelope",
    "Name",
    "Objects",
    "OnThreads",
    "RemoteAddress",
    "RemoteCounts",
    "RemoteTier",
    "S3Address",
    "Trouble",
    "ValkeyAddress",
    "parse_remote",
]
