"""Warm: a prompt brought up to DRAM because an operator says that it will be asked for."""

from dataclasses import dataclass

from .bringing import Bringer
from .residents import Residents


@dataclass(frozen=True, slots=True)
class Warmed:
    """tokens: of the prompt, in DRAM now; brought: those of them that were not there before. reason: why it is not all
    of its full blocks, "" = it is."""

    tokens: int
    brought: int
    reason: str


async def warm(space: Residents, bringer: Bringer, tokens: bytes, deadline_s: float) -> Warmed:
    """As a request would, but that nothing is leased, counted as a hit, or computed."""
    before = space.index.match(tokens).tokens
    space.held += 1  # the namespace stays while something is on its way to it
    try:
        async with bringer.bring(space, tokens, skip=0, deadline_s=deadline_s) as came:
            match = space.index.match(tokens)
            space.index.touch(match.blocks[before // space.block_tokens :])
    finally:
        space.held -= 1
    missing = match.tokens < len(tokens) // space.block_token_bytes * space.block_tokens
    return Warmed(match.tokens, max(match.tokens - before, 0), (came.why or "never_seen") if missing else "")
