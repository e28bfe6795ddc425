"""How stored prefixes are shown to people."""

from collections.abc import Iterable, Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..proto import DEFAULT_RETENTION
from ..proto import kv_pb2 as pb
from ..radix import unpack_tokens
from .words import NEAR_FIRST, said

TEXT_CHARS = 60
PIPED_COLUMNS = 160  # where the output is no terminal, whose width nobody knows


def console() -> Console:
    """For tables on stdout: never narrower than they need to be where nobody looks."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=PIPED_COLUMNS)


def plain_table(title: str, *columns: str, words: Iterable[str] = ()) -> Table:
    """Without lines. Columns of words are set left and cut to what fits, others right and never cut."""
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        if column in words:
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(column, no_wrap=True, justify="right", min_width=len(column))
    return table


def tier_names(held: Iterable[Mapping[str, int]]) -> list[str]:
    """Of all that hold something, the nearest first."""
    given = {tier for each in held for tier in each}
    return [*(tier for tier in NEAR_FIRST if tier in given), *sorted(given.difference(NEAR_FIRST))]


def begins_with(each: pb.PrefixStatus) -> Text:
    """The first words of a run where the operator allows it, else its first token ids."""
    if each.text:
        return Text(one_line(each.text, TEXT_CHARS))
    ids = " ".join(map(str, unpack_tokens(each.tokens).tolist()))
    return Text(f"{ids} ..." if ids else "", style="dim")


def one_line(text: str, most: int) -> str:
    """With line ends shown, cut to so many characters."""
    shown = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def kept(retention: pb.RetentionSpec, pinned_blocks: int, blocks: int) -> str:
    """What was asked for its keeping; "" = nothing."""
    parts: list[str] = []
    if pinned_blocks:
        parts.append("pinned" if pinned_blocks == blocks else f"pinned {pinned_blocks:,} of {blocks:,}")
    if retention.priority != DEFAULT_RETENTION.priority:
        parts.append(f"priority {retention.priority}")
    if retention.ttl_s:
        parts.append(f"ttl {said(retention.ttl_s)}")
    return ", ".join(parts)
