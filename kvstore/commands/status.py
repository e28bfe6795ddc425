"""`kvterrace status` and `kvterrace version`."""

from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

from ..service.admin import fetch_status
from ..service.frames import WIRE_VERSION
from ..status_view import status_json, status_tables
from .common import CALL_TIMEOUT_S, AddressOption, JsonOption, address_of, ask, fail, print_json


def status(
    address: AddressOption = None,
    as_json: JsonOption = False,
    check: Annotated[bool, typer.Option("--check", help="Also recount every slot and lease.")] = False,
) -> None:
    """Show what a sidecar holds. Exit code 1 when none answers, or when the recount finds a fault."""
    reply = ask("status", fetch_status(address_of(address), check=check, timeout_s=CALL_TIMEOUT_S))
    if as_json:
        typer.echo(status_json(reply))
    else:
        console = Console()
        for part in status_tables(reply):
            console.print(part)
    if reply.check_error:
        fail("status", f"the recount found a fault: {reply.check_error}", 1)


def show_version(as_json: JsonOption = False) -> None:
    """Print the version."""
    if as_json:
        print_json({"version": version("kvterrace"), "wire_version": WIRE_VERSION})
    else:
        typer.echo(f"kvterrace {version('kvterrace')}")
