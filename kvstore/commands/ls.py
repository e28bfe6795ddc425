"""`kvterrace ls`: which namespaces and prefixes a sidecar holds."""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from ...proto import kv_pb2 as pb
from ..prefix_view import begins_with, console, kept, plain_table, tier_names
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
    fingerprint_of,
    print_json,
)

SHOWN_TOKENS = 12  # about as many words as fit a line


class Sort(StrEnum):
    """How runs are ordered: most hits, most bytes, oldest, used last, longest."""

    HITS = "hits"
    BYTES = "bytes"
    AGE = "age"
    IDLE = "idle"
    TOKENS = "tokens"


def ls(
    namespace: Annotated[str | None, typer.Argument(help="Only this one: its label or fingerprint.")] = None,
    sort: Annotated[Sort, typer.Option(help="Most hits or bytes, oldest, used last, or longest first.")] = Sort.HITS,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Prefixes shown.")] = 20,
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """List what a sidecar holds: namespaces, then prefixes, as runs of blocks that have no branch between them. A
    prefix is named by the key of its last block; its first digits will do, as with git."""
    to = address_of(address)
    request = pb.PrefixesRequest(
        fingerprint=fingerprint_of("ls", to, namespace), tenant=tenant, sort=sort, limit=limit, tokens=SHOWN_TOKENS
    )
    reply = ask("ls", fetch_prefixes(to, request, timeout_s=CHANGE_TIMEOUT_S))
    if as_json:
        print_json(plain(reply))
        return
    shown = console()
    if namespace is None:
        shown.print(_spaces(reply.spaces))
        shown.print()
    shown.print(_prefixes(reply, sort))
    for line in _more(reply):
        shown.print(line)


def _spaces(spaces: Iterable[pb.PrefixSpace]) -> Table:
    tiers = tier_names(space.tier_bytes for space in spaces)
    columns = ("namespace", "sessions", *tiers, "tenant", "label")
    table = plain_table("namespaces", *columns, words=("namespace", "tenant", "label"))
    for space in spaces:
        held = [f"{space.tier_blocks[tier]:,} ({format_bytes(space.tier_bytes[tier])})" for tier in tiers]
        name = space.fingerprint.hex()[:SHORT]
        table.add_row(name, f"{space.sessions}", *held, space.tenant or "default", Text(space.label or "not known"))
    return table


def _prefixes(reply: pb.PrefixesReply, sort: str) -> Table:
    tiers = tier_names(each.tier_blocks for each in reply.prefixes)
    columns = ("prefix", "tokens", "blocks", *tiers, "hits", "age", "idle", "below", "kept", "begins with")
    table = plain_table(f"prefixes, by {sort}", *columns, words=("prefix", "kept", "begins with"))
    for each in reply.prefixes:
        table.add_row(
            each.key.hex()[:SHORT],
            f"{each.prefix_tokens:,}",
            f"{each.blocks:,}",
            *(f"{each.tier_blocks[tier]:,}" for tier in tiers),
            f"{each.hits:,}",
            said(each.age_s),
            said(each.idle_s),
            f"{each.below_blocks:,}" if each.children else "-",
            kept(each.retention, each.pinned_blocks, each.blocks) or "-",
            begins_with(each),
        )
    return table


def _more(reply: pb.PrefixesReply) -> Iterator[str]:
    if reply.total > len(reply.prefixes):
        least = "more than " if reply.partial else ""
        yield f"{len(reply.prefixes):,} of {least}{reply.total:,} prefixes; --limit shows more"
