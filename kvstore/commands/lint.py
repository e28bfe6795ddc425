"""`kvterrace lint`: prompts that share a beginning and break off early for no good reason."""

from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ...proto import kv_pb2 as pb
from ..around import differing
from ..service.admin import fetch_insight
from ..status_view import plain
from ..words import KINDS
from .common import (
    CALL_TIMEOUT_S,
    SHORT,
    AddressOption,
    JsonOption,
    NamespaceOption,
    address_of,
    ask,
    fail,
    fingerprint_of,
    print_json,
)


def lint(
    namespace: NamespaceOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Findings shown.")] = 10,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 when there is a finding.")] = False,
    as_json: JsonOption = False,
    address: AddressOption = None,
) -> None:
    """Show where prompts break off what they share: a date or a request's number near the beginning, tools in another
    order. What comes behind is computed again and again. Dearest first; found in live traffic."""
    to = address_of(address)
    request = pb.InsightRequest(fingerprint=fingerprint_of("lint", to, namespace))
    reply = ask("lint", fetch_insight(to, request, timeout_s=CALL_TIMEOUT_S))
    found = [each for each in reply.findings if request.fingerprint in {b"", each.fingerprint}]
    if as_json:
        print_json({"findings": plain(found[:limit]), "skipped": reply.skipped})
    else:
        console = Console(highlight=False, soft_wrap=True)
        for number, each in enumerate(found[:limit], 1):
            for line in _lines(number, each):
                console.print(line)
        if len(found) > limit:
            console.print(f"{limit} of {len(found)} findings; --limit shows more")
        if not found:
            console.print("nothing found in the prompts so far")
        if reply.skipped:
            console.print(f"{reply.skipped:,} prompts were not looked at, since there was no time to")
    if check and found:
        fail("lint", f"{len(found)} findings", 1)


def _lines(number: int, each: pb.Finding) -> list[Text]:
    where = f"{each.label or each.fingerprint.hex()[:SHORT]}{f', tenant {each.tenant}' if each.tenant else ''}"
    lost = f"{each.lost_tokens_per_day:,.0f} tokens a day are computed again behind it"
    kind = KINDS.get(each.kind, each.kind)
    lines = [
        Text(f"{number}. {kind}, at token {each.token:,} of {each.prompts:,} prompts ({where})"),
        Text(f"   {lost}; what they share ends in {each.key.hex()[:SHORT]}"),
    ]
    ours, cached = differing(each.ours_text, each.cached_text, each.ours, each.cached)
    return [*lines, Text("   one:     ") + ours, Text("   another: ") + cached, Text("")]
