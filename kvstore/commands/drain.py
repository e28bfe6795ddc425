"""`kvterrace drain`: have a node hand its hottest blocks over and leave."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import grpc.aio
import typer

from ...proto import kv_pb2 as pb
from ..errors import KvterraceError
from ..options import default_uds
from ..service.admin import CallRefused, NoSidecar, explain
from ..service.channel import Address, open_channel
from ..service.stub import drain_call
from ..status_view import format_bytes

SLACK_S = 10.0  # beyond the deadline, for the last answer


def drain(
    address: Annotated[
        str | None,
        typer.Option("--address", help="unix:/PATH or HOST:PORT of the sidecar.", show_default="this user's socket"),
    ] = None,
    deadline: Annotated[float, typer.Option(help="Seconds it may take.", min=0.0, max=600.0)] = 60.0,
    stay: Annotated[bool, typer.Option("--stay", help="Leave the process running when it is done.")] = False,
) -> None:
    """Have a sidecar take nothing new, hand its hottest blocks to other nodes, and end. Exit code 1 when that was not
    done by the deadline."""
    try:
        last = asyncio.run(_drain(address or f"unix:{default_uds()}", deadline, stay))
    except (KvterraceError, ValueError) as error:
        typer.echo(f"kvterrace drain: {error}", err=True)
        sys.exit(1 if isinstance(error, NoSidecar) else 2)
    for line in outcome(last):
        typer.echo(line)
    if last.phase != "done" or last.pending_blocks or last.left.get("deadline"):
        typer.echo("kvterrace drain: it was not done by the deadline", err=True)
        sys.exit(1)


def outcome(said: pb.DrainProgress) -> list[str]:
    """What came of it, for people."""
    nodes = ", ".join(f"{node} {blocks:,}" for node, blocks in sorted(said.to.items()))
    lines = [f"handed over {said.handed_blocks:,} blocks ({format_bytes(said.handed_bytes)}) in {said.seconds:.1f} s"]
    if nodes:
        lines.append(f"to: {nodes}")
    if said.safe_blocks:
        lines.append(f"on other nodes already: {said.safe_blocks:,} blocks")
    if said.left:
        why = ", ".join(f"{reason} {blocks:,}" for reason, blocks in sorted(said.left.items()))
        lines.append(f"left behind: {sum(said.left.values()):,} blocks ({format_bytes(said.left_bytes)}): {why}")
    if said.pending_blocks:
        lines.append(f"not written to the lower tier: {said.pending_blocks:,} blocks")
    return lines


async def _drain(address: Address, deadline_s: float, stay: bool) -> pb.DrainProgress:
    last, said = pb.DrainProgress(), ""
    async with _answers(address, pb.DrainRequest(deadline_s=deadline_s, stay=stay), deadline_s + SLACK_S) as answers:
        async for last in answers:
            line = f"{last.phase}: {last.handed_blocks:,} blocks handed over, {last.waiting_blocks:,} to go"
            if last.phase != "done" and line != said:
                typer.echo(line)
                said = line
    if last.phase != "done":
        raise CallRefused("the sidecar went before it said what came of it")
    return last


@asynccontextmanager
async def _answers(
    address: Address, request: pb.DrainRequest, timeout_s: float
) -> AsyncGenerator[AsyncGenerator[pb.DrainProgress]]:
    async with open_channel(address) as channel:
        call = drain_call(channel, request, timeout_s)

        async def read() -> AsyncGenerator[pb.DrainProgress]:
            try:
                while isinstance(said := await call.read(), pb.DrainProgress):
                    yield said
            except grpc.aio.AioRpcError as error:
                raise explain(error, address, timeout_s) from None

        yield read()
