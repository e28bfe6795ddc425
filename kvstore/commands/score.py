"""`kvterrace score`: how much of a prompt each node and each engine has."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ...proto import kv_pb2 as pb
from ...radix import pack_tokens
from ..errors import ConfigError, KvterraceError
from ..options import default_uds
from ..scores import as_json
from ..service.admin import NoSidecar, fetch_scores
from ..token_file import read_token_ids

SLACK_S = 3.0  # beyond the deadline


def score(
    namespace: Annotated[str, typer.Option(help="Fingerprint in hex, or the label of a namespace in use.")],
    tokens: Annotated[Path, typer.Option(help="File of token ids (numbers, in JSON or apart by blanks).")],
    address: Annotated[
        str | None,
        typer.Option("--address", help="unix:/PATH or HOST:PORT of the sidecar.", show_default="this user's socket"),
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="Of that node alone.")] = False,
    deadline: Annotated[float, typer.Option(help="Seconds that other nodes may take.", min=0.001, max=5.0)] = 0.5,
    as_json_text: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show how many tokens of a prompt each node and each engine has, by tier."""
    try:
        request = pb.ScoreRequest(tokens=pack_tokens(read_token_ids(tokens)), local=local, deadline_s=deadline)
        fingerprint = fingerprint_of(namespace)
        if fingerprint:
            request.fingerprint = fingerprint
        else:
            request.namespace = namespace
        reply = asyncio.run(fetch_scores(address or f"unix:{default_uds()}", request, timeout_s=deadline + SLACK_S))
    except (KvterraceError, ConfigError, ValueError) as error:
        typer.echo(f"kvterrace score: {error}", err=True)
        sys.exit(1 if isinstance(error, NoSidecar) else 2)
    if as_json_text:
        typer.echo(json.dumps(as_json(reply)))
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
