"""Branch: where a prompt parts from the known ones."""

from itertools import islice
from typing import NamedTuple

from .tokens import TOKEN_BYTES
from .tree import Node

MOST_CHILDREN = 64  # of one branch point that are compared, the newest first
MOST_TOKENS = 32  # of the known continuation that are told


class Branch(NamedTuple):
    """The known continuation that is most like a prompt's next block. common: leading tokens of that block that are the
    same; known: packed tokens that follow them there, a few."""

    common: int
    known: bytes


def nearest(node: Node, offset: int, wanted: bytes) -> Branch | None:
    """What follows the first `offset` blocks of a node's run, and is most like the one block `wanted`, which is not
    known there; None when nothing follows. O(MOST_CHILDREN)."""
    at = offset * len(wanted)
    if at < len(node.edge):
        common = _common(bytes(node.edge[at : at + len(wanted)]), wanted, 0)
        return Branch(common, _run(node, at + common * TOKEN_BYTES))
    children = node.children or {}
    best, found = -1, None
    more = b""  # what a child must begin with to be more like it than all before
    for key in islice(reversed(children), MOST_CHILDREN):
        if len(key) == len(wanted) and key.startswith(more):  # a longer one has extras, and is no continuation
            best, found = _common(key, wanted, best + 1), key
            more = wanted[: (best + 1) * TOKEN_BYTES]
    return Branch(best, _run(children[found], best * TOKEN_BYTES)) if found is not None else None


def _common(known: bytes, wanted: bytes, least: int) -> int:
    """Leading tokens that the two blocks share; at least `least` are known to be."""
    count = least
    while count * TOKEN_BYTES < len(wanted) and known.startswith(wanted[: (count + 1) * TOKEN_BYTES]):
        count += 1
    return count


def _run(node: Node, at: int) -> bytes:
    """Packed tokens from byte `at` of a node's run on, and of the newest runs below it, as far as they are told."""
    size = MOST_TOKENS * TOKEN_BYTES
    known = bytes(node.edge[at : at + size])
    while len(known) < size and node.children is not None:
        node = next(reversed(node.children.values()))  # the newest
        known += bytes(node.edge[: size - len(known)])
    return known
