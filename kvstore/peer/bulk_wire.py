"""The bulk channel's bytes: what the two sides say before blocks flow. Pure; docs/formats.md has the layout.

Integers are little-endian. A peer's header is checked whole before any of it is believed.
"""

import struct
from dataclasses import dataclass

from .tickets import TICKET_BYTES

MAGIC = b"KVTBULK\n"
VERSION = 1
_HELLO = struct.Struct(f"<8sII{TICKET_BYTES}s")
_ANSWER = struct.Struct("<8sIIQ")
HELLO_BYTES = _HELLO.size
ANSWER_BYTES = _ANSWER.size

GRANTED = 0
REFUSED = 1  # the ticket is unknown, used or expired; the connection stays good
WRONG_VERSION = 2  # the server closes behind it


class WireError(ValueError):
    """Bytes that are not of this channel."""


@dataclass(frozen=True, slots=True)
class Hello:
    version: int
    ticket: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    length_bytes: int


def pack_hello(ticket: bytes) -> bytes:
    """ValueError for a ticket of the wrong length."""
    if len(ticket) != TICKET_BYTES:
        raise ValueError(f"a ticket has {TICKET_BYTES} bytes, not {len(ticket)}")
    return _HELLO.pack(MAGIC, VERSION, 0, ticket)


def unpack_hello(data: bytes) -> Hello:
    """Of any version, so that the server can answer which one it speaks. WireError: not a hello."""
    magic, version, reserved, ticket = _HELLO.unpack(data)
    if magic != MAGIC:
        raise WireError(f"a hello begins with {magic!r}")
    if version == VERSION and reserved:
        raise WireError(f"reserved bytes of a hello are {reserved}")
    return Hello(version, ticket)


def pack_answer(status: int, length_bytes: int = 0) -> bytes:
    return _ANSWER.pack(MAGIC, VERSION, status, length_bytes)


def unpack_answer(data: bytes) -> Answer:
    """WireError: not an answer, or of a version or with a status that this side does not know."""
    magic, version, status, length_bytes = _ANSWER.unpack(data)
    if magic != MAGIC:
        raise WireError(f"an answer begins with {magic!r}")
    if version != VERSION or status == WRONG_VERSION:
        raise WireError(f"the server speaks version {version}, this program version {VERSION}")
    if status not in {GRANTED, REFUSED} or (status == REFUSED and length_bytes):
        raise WireError(f"an answer of status {status} and {length_bytes} bytes")
    return Answer(status, length_bytes)
