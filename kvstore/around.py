"""Around: two prompts beside each other where they part, the difference marked."""

from collections.abc import Sequence

from rich.text import Text

from ..radix import unpack_tokens
from .prefix_view import one_line

MARK, CHARS, CONTEXT = "bold reverse", 120, 40
UNCOLOURED = "[", "]"


def differing(ours: str, cached: str, our_tokens: bytes = b"", cached_tokens: bytes = b"") -> tuple[Text, Text]:
    """Both texts, or where there is none their token ids, with what differs marked: in reverse video, and in brackets
    where that would not be seen."""
    if ours or cached:
        parts = _parts(one_line(ours, 10_000), one_line(cached, 10_000), "")
    else:
        parts = _parts(_ids(our_tokens), _ids(cached_tokens), " ")
    before, (mine, theirs), behind = parts
    return _marked(before, mine, behind[0]), _marked(before, theirs, behind[1])


def _ids(tokens: bytes) -> list[str]:
    return list(map(str, unpack_tokens(tokens).tolist()))


def _parts(ours: Sequence[str], cached: Sequence[str], glue: str) -> tuple[str, tuple[str, str], tuple[str, str]]:
    """What is common before, what differs, and what is common behind, cut to what fits a line."""
    least = min(len(ours), len(cached))
    head = next((at for at in range(least) if ours[at] != cached[at]), least)
    most = least - head
    tail = next((at for at in range(most) if ours[-1 - at] != cached[-1 - at]), most)
    before = glue.join(ours[max(head - CONTEXT, 0) : head])
    differ = [glue.join(each[head : len(each) - tail])[:CHARS] for each in (ours, cached)]
    behind = [glue.join(each[len(each) - tail :][:CONTEXT]) for each in (ours, cached)]
    ends = glue if before else "", glue if tail else ""
    return before + ends[0], (differ[0], differ[1]), (ends[1] + behind[0], ends[1] + behind[1])


def _marked(before: str, differs: str, behind: str) -> Text:
    return Text.assemble(before, (f"{UNCOLOURED[0]}{differs}{UNCOLOURED[1]}", MARK), behind)
