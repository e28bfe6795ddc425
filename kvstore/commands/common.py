"""What the commands share: options, the call to a sidecar, and how one ends.

Exit codes: 0 = done; 1 = nobody answers, or what was asked for did not come true; 2 = the user's mistake. Messages go
to stderr, in one line; answers to stdout, as JSON where --json asks for it.
"""

import asyncio
import json
import re
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer

from ...proto import kv_pb2 as pb
from ...radix import pack_tokens
from ..errors import ConfigError, KvterraceError
from ..options import default_uds
from ..service.admin import NoSidecar, fetch_prefixes
from ..service.channel import Address
from ..token_file import read_token_ids

_HEX = re.compile("[0-9A-Fa-f]+")
CALL_TIMEOUT_S = 3.0
CHANGE_TIMEOUT_S = 120.0  # of a call that may have to look at every block, or to sync a disk
FINGERPRINT_BYTES = 32
MIN_DIGITS = 8  # of a key or a fingerprint that is given by its first ones
SHORT = 12  # digits shown in a table; JSON has them all

T = TypeVar("T")
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="unix:/PATH or HOST:PORT of the sidecar.", show_default="this user's socket"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        help="Label or fingerprint (8 hexadecimal digits or more) of a namespace, as `kvterrace ls` has them."
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option(
        "--prefix", metavar="KEY", help="The prefix of that key (8 digits or more), as `kvterrace ls` has it."
    ),
]
TenantOption = Annotated[str, typer.Option(help="All namespaces of this tenant.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Change nothing, only say how much it would be.")]
TokensOption = Annotated[
    Path | None, typer.Option(help="File of token ids (numbers, in JSON or apart by blanks): only this prefix.")
]


def address_of(given: Address | None) -> Address:
    """What was given, else this user's socket."""
    return given or f"unix:{default_uds()}"


def fingerprint_of(command: str, address: Address, namespace: str | None) -> bytes:
    """The one namespace of that label, or whose fingerprint begins so; b"" when none was said. The end of the command
    when there is not one."""
    if namespace is None:
        return b""
    digits = namespace.lower() if _HEX.fullmatch(namespace) else ""
    if len(digits) == 2 * FINGERPRINT_BYTES:
        return bytes.fromhex(digits)
    wanted = pb.PrefixesRequest(no_runs=True)
    spaces = ask(command, fetch_prefixes(address, wanted, timeout_s=CALL_TIMEOUT_S)).spaces
    found = [each for each in spaces if each.label == namespace] or [
        each for each in spaces if len(digits) >= MIN_DIGITS and each.fingerprint.hex().startswith(digits)
    ]
    if len(found) > 1:
        which = ", ".join(each.fingerprint.hex()[:SHORT] for each in found)
        fail(command, f"--namespace: {len(found)} namespaces are called {namespace!r}: give one of {which}", 2)
    if not found:
        known = ", ".join(sorted({each.label or each.fingerprint.hex()[:SHORT] for each in spaces}))
        fail(command, f"--namespace: there is no {namespace!r}; there are {known or 'none'}", 2)
    return found[0].fingerprint


def only_namespace(command: str, address: Address) -> bytes:
    """The one that a sidecar has; the end of the command when it has several, or none."""
    wanted = pb.PrefixesRequest(no_runs=True)
    spaces = ask(command, fetch_prefixes(address, wanted, timeout_s=CALL_TIMEOUT_S)).spaces
    if len(spaces) != 1:
        names = ", ".join(f"{each.fingerprint.hex()[:SHORT]} {each.label}".rstrip() for each in spaces)
        fail(command, f"--namespace: say which; there are {names or 'none'}", 2)
    return spaces[0].fingerprint


def key_of(command: str, option: str, key: str | None) -> bytes:
    """Of a key, whole or its first digits; b"" when none was said."""
    if key is None:
        return b""
    if not _HEX.fullmatch(key) or not MIN_DIGITS <= len(key) <= 2 * FINGERPRINT_BYTES or len(key) % 2:
        fail(command, f"{option}: {key!r} is no key: give an even number of its hexadecimal digits, 8 or more", 2)
    return bytes.fromhex(key)


def packed_tokens(command: str, path: Path | None) -> bytes:
    """Of a file of token ids; b"" when none was said."""
    try:
        return pack_tokens(read_token_ids(path)) if path is not None else b""
    except ConfigError as error:
        fail(command, str(error), 2)


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
