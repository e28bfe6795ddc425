"""`kvterrace show`: one stored prefix."""

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ...proto import kv_pb2 as pb
from ...radix import unpack_tokens
from ..prefix_view import begins_with, console, kept, one_line, plain_table
from ..service.admin import fetch_prefixes
from ..status_view import format_bytes, plain
from ..words import said
from .common import (
    CHANGE_TIMEOUT_S,
    SHORT,
    AddressOption,
    JsonOption,
    address_of,
    ask,
    fail,
    key_of,
    print_json,
)

SHOWN_CHARS = 2000
CHILDREN = 20


def show(
    key: Annotated[str, typer.Argument(help="Of the prefix: 8 digits or more, as `kvterrace ls` has it.")],
    tokens: Annotated[int, typer.Option(min=0, max=100_000, help="First tokens of the run that are shown.")] = 64,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Show one stored prefix: where it is, how it is used, what hangs below it. A key within a run shows that run."""
    to, wanted = address_of(address), key_of("show", "KEY", key)
    found = ask("show", fetch_prefixes(to, pb.PrefixesRequest(key=wanted, tokens=tokens), timeout_s=CHANGE_TIMEOUT_S))
    if not found.prefixes:
        fail("show", f"no stored block's key begins with {key}", 2)
    if len(found.prefixes) > 1:
        names = ", ".join(each.key.hex()[: max(SHORT, len(key) + 4)] for each in found.prefixes[:8])
        fail("show", f"{len(found.prefixes)} prefixes have a block whose key begins with {key}: {names}", 2)
    (one,) = found.prefixes
    below = pb.PrefixesReply()
    if one.children:
        asked = pb.PrefixesRequest(key=one.key, children=True, limit=CHILDREN, tokens=8)
        below = ask("show", fetch_prefixes(to, asked, timeout_s=CHANGE_TIMEOUT_S))
    if as_json:
        print_json({**plain(one), "below": plain(below.prefixes)})
        return
    shown = console()
    for part in _parts(one, below):
        shown.print(part)


def _parts(one: pb.PrefixStatus, below: pb.PrefixesReply) -> Iterator[Table | Text]:
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, value in _rows(one):
        table.add_row(Text(name, style="bold"), value if isinstance(value, Text) else Text(value))
    yield table
    text = one_line(one.text, SHOWN_CHARS)
    yield Text(text or " ".join(map(str, unpack_tokens(one.tokens).tolist())), style="dim" if not text else "")
    if below.prefixes:
        columns = ("prefix", "blocks", "hits", "idle", "below", "begins with")
        children = plain_table("right below it", *columns, words=("prefix", "begins with"))
        for each in below.prefixes:
            counts = f"{each.blocks:,}", f"{each.hits:,}", said(each.idle_s), f"{each.below_blocks:,}"
            children.add_row(each.key.hex()[:SHORT], *counts, begins_with(each))
        yield children
        if below.total > len(below.prefixes):
            yield Text(f"{len(below.prefixes):,} of {below.total:,}")


def _rows(one: pb.PrefixStatus) -> Iterator[tuple[str, str]]:
    first_token = one.prefix_tokens - one.blocks * (one.prefix_tokens // (one.first_block + one.blocks))
    yield "key", one.key.hex()
    yield "namespace", f"{one.fingerprint.hex()[:SHORT]} {one.label}".rstrip()
    yield "tenant", one.tenant or "default"
    yield "tokens", f"{first_token:,} to {one.prefix_tokens:,} of the prompt, in {one.blocks:,} blocks"
    for tier, blocks in sorted(one.tier_blocks.items()):
        part = "all" if blocks == one.blocks else f"the first {blocks:,}"
        yield f"in {tier}", f"{part} ({format_bytes(one.tier_bytes[tier])})"
    used = f"{one.hits:,}, the last one {said(one.idle_s)} ago" if one.hits else "none yet"
    yield "hits", f"{used}; here for {said(one.age_s)}"
    yield "kept", kept(one.retention, one.pinned_blocks, one.blocks) or "as any other"
    yield "read now", f"{one.leases:,} leases" if one.leases else "no"
    yield "above it", one.parent.hex() if one.parent else "nothing: it is where prompts begin"
    yield "below it", f"{one.below_blocks:,} blocks in {one.children:,} branches" if one.children else "nothing"
