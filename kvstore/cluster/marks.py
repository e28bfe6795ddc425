"""Marks: the blocks of a path that a node announces, a sixteenth of all. Pure.

What a node holds of a path is a prefix of it, so the deepest mark that it announced tells to within 15 blocks how much
it has, and the fetch itself finds out the rest. The first few are marks too, so that short prompts are found.
"""

EVERY = 16  # blocks
_EARLY = (1, 2, 4, 8)


def is_mark(ordinal: int) -> bool:
    """Whether the block of this 0-based ordinal is announced."""
    return (ordinal + 1) % EVERY == 0 or ordinal + 1 in _EARLY


def marks_of(first: int, count: int) -> list[int]:
    """Ordinals of the marks among `count` blocks from `first` on, ascending. Costs nothing for those between."""
    end = first + count
    early = [length - 1 for length in _EARLY if first < length <= end]
    return early + list(range((first + EVERY) // EVERY * EVERY - 1, end, EVERY))
