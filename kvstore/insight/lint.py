"""Lint: prompts that share a head, break off early, and then run on the same again: what a timestamp, a request's id or
a list in another order near the top of a prompt does. All behind it is computed again.

Prompts are grouped by the last block that they share with what is cached. Of each group a few tails are kept, and a new
prompt is compared with them. Fixed memory: MOST_GROUPS * MOST_TAILS * 8 KiB, 12 MiB. At most LOOKS_PER_S prompts are
compared; what they lose stands for the others of their group.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ...radix import block_keys
from .facts import Asked, SpaceFacts
from .kinds import TextOf, kind_of
from .overlap import Overlap, Tail
from .types import Finding

MOST_GROUPS = 512
MOST_TAILS = 3
LOOKS_PER_S = 20.0
MIN_SAME_TOKENS = 32  # less is a template's, and worth nothing
MIN_PROMPTS = 2  # that lost something, before it is told
MIN_OBSERVED_S = 900.0  # a rate is made from no less
FORGOTTEN_S = 86_400.0
BEFORE, BEHIND = 16, 32  # tokens shown around a break
_KEY_BLOCKS = 256  # hashed in one step
_BREAKS = frozenset({"never_seen", "diverged", "not_committed", "computing"})  # else the block was known once


@dataclass(slots=True)
class _Group:
    """prompts: that broke here; looked: compared with others; lost: of them, and lost_tokens: theirs."""

    facts: SpaceFacts
    first_s: float
    last_s: float
    prompts: int = 0
    looked: int = 0
    lost: int = 0
    lost_tokens: int = 0
    tails: deque[Tail] = field(default_factory=lambda: deque[Tail](maxlen=MOST_TAILS))
    key: bytes = b""
    token: int = 0
    kind: str = "unknown"
    ours: bytes = b""
    cached: bytes = b""
    ours_text: str = ""
    cached_text: str = ""


class Lint:
    """text: shows operators what breaks, where they allow it."""

    def __init__(self, text: TextOf = lambda label, tokens: "") -> None:
        self._text = text
        self._groups: OrderedDict[int, _Group] = OrderedDict()
        self._looks = LOOKS_PER_S
        self._looked_s = 0.0

    def look(self, asked: Asked, blocks: NDArray[np.uint64]) -> Iterator[None]:
        """One prompt, whose blocks these are; in steps of a millisecond at most."""
        found, facts = asked.found_blocks, asked.facts
        size = facts.block_tokens * 4
        if not 0 < found <= len(blocks) or asked.reason not in _BREAKS or len(asked.tokens) < found * size + size:
            return
        group = self._group(int(blocks[found - 1]), asked)
        group.prompts += 1
        if not self._may_look(asked.at_s):
            return
        tail = Tail(asked.tokens[found * size :])
        yield
        if group.tails:
            group.looked += 1
            best, theirs = _most(tail, group.tails, facts.block_tokens)
            yield
            if best is not None and best.same_tokens >= max(MIN_SAME_TOKENS, 2 * facts.block_tokens):
                group.lost += 1
                group.lost_tokens += best.same_tokens
                yield from self._describe(group, asked, best, theirs)
        group.tails.append(tail)

    def findings(self, now: float) -> list[Finding]:
        """Those that cost most first."""
        told = [
            _finding(group, now)
            for group in self._groups.values()
            if group.lost >= MIN_PROMPTS and now - group.last_s < FORGOTTEN_S
        ]
        return sorted(told, key=lambda each: -each.lost_tokens_per_day)

    def forget(self, fingerprint: bytes | None) -> None:
        """What is known of one namespace's prompts, or of all."""
        for name in [key for key, each in self._groups.items() if fingerprint in (None, each.facts.fingerprint)]:
            del self._groups[name]

    def _group(self, name: int, asked: Asked) -> _Group:
        group = self._groups.get(name)
        if group is None or asked.at_s - group.last_s > FORGOTTEN_S:
            group = self._groups[name] = _Group(asked.facts, asked.at_s, asked.at_s)
            if len(self._groups) > MOST_GROUPS:
                self._groups.popitem(last=False)
        self._groups.move_to_end(name)
        group.last_s = asked.at_s
        return group

    def _may_look(self, now: float) -> bool:
        self._looks = min(LOOKS_PER_S, self._looks + max(now - self._looked_s, 0.0) * LOOKS_PER_S)
        self._looked_s = now
        if self._looks < 1.0:
            return False
        self._looks -= 1.0
        return True

    def _describe(self, group: _Group, asked: Asked, best: Overlap, theirs: Tail) -> Iterator[None]:
        """Say of the group how its newest two break, and once what it is named."""
        facts, first = asked.facts, asked.found_blocks * asked.facts.block_tokens
        group.token = first + best.differs
        before = asked.tokens[max(group.token - BEFORE, 0) * 4 : group.token * 4]
        group.ours = before + asked.tokens[group.token * 4 : (group.token + BEHIND) * 4]
        group.cached = before + theirs.head[best.differs : best.differs + BEHIND].astype("<i4").tobytes()
        group.ours_text = self._text(facts.label, group.ours)
        group.cached_text = self._text(facts.label, group.cached) if group.ours_text else ""
        if best.reordered:
            group.kind = "reordered"
        elif group.ours_text:
            shared = len(self._text(facts.label, before))
            group.kind = kind_of(group.ours_text, group.cached_text, shared)
        if not group.key:
            key, size = facts.fingerprint, facts.block_tokens * 4
            for start in range(0, asked.found_blocks, _KEY_BLOCKS):
                piece = asked.tokens[start * size : min(start + _KEY_BLOCKS, asked.found_blocks) * size]
                key = block_keys(key, piece, facts.block_tokens, hash_name=facts.hash_name)[-1]
                yield
            group.key = key


def _most(tail: Tail, others: deque[Tail], within: int) -> tuple[Overlap | None, Tail]:
    """What it has most in common with, of those that differ from it in the break's block."""
    pairs = [(tail.compare(each, within), each) for each in others]
    return max(pairs, key=lambda pair: pair[0].same_tokens if pair[0] is not None else -1)


def _finding(group: _Group, now: float) -> Finding:
    observed_s = max(now - group.first_s, MIN_OBSERVED_S)
    lost_tokens = group.prompts * group.lost_tokens / group.looked
    return Finding(
        fingerprint=group.facts.fingerprint,
        label=group.facts.label,
        tenant=group.facts.tenant,
        key=group.key,
        token=group.token,
        kind=group.kind,
        prompts=round(group.prompts * group.lost / group.looked),
        lost_tokens_per_day=lost_tokens / observed_s * 86_400.0,
        ours=group.ours,
        cached=group.cached,
        ours_text=group.ours_text,
        cached_text=group.cached_text,
    )
