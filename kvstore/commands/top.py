"""`kvterrace top`: a sidecar watched: rates, tiers, misses, what the last requests got."""

import asyncio
import contextlib
import json
import os
import sys
import termios
import tty
from collections.abc import Callable, Generator
from typing import Annotated

import grpc.aio
import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from ...proto import kv_pb2 as pb
from ..errors import KvterraceError
from ..prefix_view import console
from ..rates import Frame, frame_json, frame_tables
from ..service.admin import NoSidecar, explain
from ..service.channel import Address, open_channel
from ..service.stub import receipts_call, status_call
from .common import CALL_TIMEOUT_S, AddressOption, JsonOption, address_of, fail, print_json

RECEIPTS = 8
QUIT_KEYS = "qQ\x03\x04"


def top(
    address: AddressOption = None,
    interval: Annotated[float, typer.Option(min=0.2, max=60.0, help="Seconds from frame to frame.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame, measured over one interval, and end.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch a sidecar until q or Ctrl-C. What is told per second is of the last interval. --json prints a frame a line
    (with --once, one)."""
    to = address_of(address)
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(_watch(to, interval, once, as_json))
        except NoSidecar as error:
            fail("top", str(error), 1)
        except (KvterraceError, ValueError) as error:
            fail("top", str(error), 2)


async def _watch(to: Address, interval_s: float, once: bool, as_json: bool) -> None:
    quitting = asyncio.Event()
    async with open_channel(to) as channel:
        before, trouble = await _sample(channel, to), ""
        with _shown(once or as_json) as show, _keys(quitting, once or as_json):
            while not quitting.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(quitting.wait(), interval_s)
                try:
                    now, trouble = await _sample(channel, to), ""
                except NoSidecar as error:
                    if once or as_json:
                        raise
                    now, trouble = before, str(error)
                _say(Frame.between(before, now, str(to), trouble), show, as_json, indented=once)
                before = now
                if once:
                    return


async def _sample(channel: grpc.aio.Channel, to: Address) -> tuple[pb.StatusReply, pb.ReceiptsReply]:
    try:
        status = await status_call(channel, pb.StatusRequest(), CALL_TIMEOUT_S)
        return status, await receipts_call(channel, pb.ReceiptsRequest(limit=RECEIPTS), CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        raise explain(error, to, CALL_TIMEOUT_S) from None


def _say(frame: Frame, show: Callable[[Frame], None], as_json: bool, *, indented: bool) -> None:
    if not as_json:
        show(frame)
    elif indented:
        print_json(frame_json(frame))
    else:
        typer.echo(json.dumps(frame_json(frame)))


@contextlib.contextmanager
def _shown(plainly: bool) -> Generator[Callable[[Frame], None]]:
    """Shows frames, one over the other; plainly, one below the other."""
    shown = console()
    if plainly or not shown.is_terminal:
        yield lambda frame: shown.print(Group(*frame_tables(frame)))
        return
    with Live(Text("..."), console=shown, screen=True, auto_refresh=False) as live:
        yield lambda frame: live.update(Group(*frame_tables(frame), Text("q ends", style="dim")), refresh=True)


@contextlib.contextmanager
def _keys(quitting: asyncio.Event, off: bool) -> Generator[None]:
    """Sets the event when q is pressed, where a terminal is there to press it on."""
    if off or not sys.stdin.isatty():
        yield
        return
    loop, stdin = asyncio.get_running_loop(), sys.stdin.fileno()
    kept = termios.tcgetattr(stdin)

    def pressed() -> None:
        if set(os.read(stdin, 64).decode(errors="ignore")) & set(QUIT_KEYS):
            quitting.set()

    tty.setcbreak(stdin)
    loop.add_reader(stdin, pressed)
    try:
        yield
    finally:
        loop.remove_reader(stdin)
        termios.tcsetattr(stdin, termios.TCSADRAIN, kept)
