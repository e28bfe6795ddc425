"""What the commands share: options, the call to a sidecar, and how one ends.

Exit codes: 0 = done; 1 = nobody answers, or what was asked for did not come true; 2 = the user's mistake. Messages go
to stderr, in one line; answers to stdout, as JSON where --json asks for it.
"""

import asyncio
import json
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from ..errors import KvterraceError
from ..options import default_uds
from ..service.admin import NoSidecar
from ..service.channel import Address

CALL_TIMEOUT_S = 3.0

T = TypeVar("T")
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="unix:/PATH or HOST:PORT of the sidecar.", show_default="this user's socket"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NamespaceOption = Annotated[str, typer.Option(help="Fingerprint in hex, as `kvterrace status --json` has it.")]
TokensOption = Annotated[
    Path | None, typer.Option(help="File of token ids (numbers, in JSON or apart by blanks): only this prefix.")
]


def address_of(given: Address | None) -> Address:
    """What was given, else this user's socket."""
    return given or f"unix:{default_uds()}"


def fingerprint_of(command: str, namespace: str | None) -> bytes:
    """Of --namespace; b"" when it was not given."""
    try:
        return bytes.fromhex(namespace or "")
    except ValueError:
        fail(command, f"--namespace: {namespace!r} is not hexadecimal", 2)


def ask(command: str, call: Coroutine[Any, Any, T]) -> T:
    """The answer to a call, or the end of the command."""
    try:
        return asyncio.run(call)
    except NoSidecar as error:
        fail(command, str(error), 1)
    except (KvterraceError, ValueError) as error:
        fail(command, str(error), 2)


def print_json(value: object) -> None:
    """On stdout, indented by one."""
    typer.echo(json.dumps(value, indent=1))


def fail(command: str, message: str, code: int) -> NoReturn:
    """Say why and end."""
    typer.echo(f"kvterrace {command}: {message}", err=True)
    sys.exit(code)
