"""`kvterrace score`: how much of a prompt each node and each engine has."""

from pathlib import Path
from typing import Annotated

import typer

from ...proto import kv_pb2 as pb
from ..scores import as_json as scores_json
from ..service.admin import fetch_scores
from .common import AddressOption, JsonOption, address_of, ask, packed_tokens, print_json

SLACK_S = 3.0  # beyond the deadline


def score(
    namespace: Annotated[str, typer.Option(help="Fingerprint in hex, or the label of a namespace in use.")],
    tokens: Annotated[Path, typer.Option(help="File of token ids (numbers, in JSON or apart by blanks).")],
    address: AddressOption = None,
    local: Annotated[bool, typer.Option("--local", help="Of that node alone.")] = False,
    deadline: Annotated[float, typer.Option(help="Seconds that other nodes may take.", min=0.001, max=5.0)] = 0.5,
    as_json: JsonOption = False,
) -> None:
    """Show how many tokens of a prompt each node and each engine has, by tier."""
    request = pb.ScoreRequest(tokens=packed_tokens("score", tokens), local=local, deadline_s=deadline)
    fingerprint = fingerprint_of(namespace)
    if fingerprint:
        request.fingerprint = fingerprint
    else:
        request.namespace = namespace
    reply = ask("score", fetch_scores(address_of(address), request, timeout_s=deadline + SLACK_S))
    if as_json:
        print_json(scores_json(reply))
        return
    for line in lines(reply):
        typer.echo(line)


def fingerprint_of(said: str) -> bytes:
    """Of 64 hexadecimal digits; b"" for anything else, which is a label."""
    try:
        found = bytes.fromhex(said)
    except ValueError:
        return b""
    return found if len(found) == 32 else b""


def lines(reply: pb.ScoreReply) -> list[str]:
    """For people."""
    said: list[str] = []
    for node in reply.nodes:
        tiers = ", ".join(f"{tier} {count:,}" for tier, count in sorted(node.tiers.items()))
        least = "" if node.exact else "at least "
        why = f" ({node.error})" if node.error else ""
        said.append(f"{node.node or 'this node'}: {least}{node.tokens:,} tokens{f': {tiers}' if tiers else ''}{why}")
        said += [f"  {each.engine or 'engine'} (session {each.session}): hbm {each.tokens:,}" for each in node.engines]
    return said
