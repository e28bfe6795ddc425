"""`kvterrace drain`: have a node hand its hottest blocks over and leave."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated

import grpc.aio
import typer

from ...proto import kv_pb2 as pb
from ..service.admin import CallRefused, explain
from ..service.channel import Address, open_channel
from ..service.stub import drain_call
from ..status_view import format_bytes, plain
from .common import AddressOption, JsonOption, address_of, ask, fail, print_json

SLACK_S = 10.0  # beyond the deadline, for the last answer


def drain(
    address: AddressOption = None,
    deadline: Annotated[float, typer.Option(help="Seconds it may take.", min=0.0, max=600.0)] = 60.0,
    stay: Annotated[bool, typer.Option("--stay", help="Leave the process running when it is done.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Have a sidecar take nothing new, hand its hottest blocks to other nodes, and end. Exit code 1 when that was not
    done by the deadline."""
    last = ask("drain", _drain(address_of(address), deadline, stay, quiet=as_json))
    if as_json:
        print_json(plain(last))
    else:
        for line in outcome(last):
            typer.echo(line)
    if last.phase != "done" or last.pending_blocks or last.left.get("deadline"):
        fail("drain", "it was not done by the deadline", 1)


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


async def _drain(address: Address, deadline_s: float, stay: bool, *, quiet: bool) -> pb.DrainProgress:
    last, said = pb.DrainProgress(), ""
    async with _answers(address, pb.DrainRequest(deadline_s=deadline_s, stay=stay), deadline_s + SLACK_S) as answers:
        async for last in answers:
            line = f"{last.phase}: {last.handed_blocks:,} blocks handed over, {last.waiting_blocks:,} to go"
            if not quiet and last.phase != "done" and line != said:
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
