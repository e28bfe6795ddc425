"""The `kvterrace` program. Sub-commands of other folders join by the entry-point group `kvterrace.commands`.

A user's mistake ends in one line on stderr and exit code 2 (1 when no sidecar answers), never in a traceback.
"""

import asyncio
import sys
from collections.abc import Coroutine, Iterable
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console

from ..proto import FieldError, Retention
from ..radix import pack_tokens
from .config import load_config
from .drain_cli import drain
from .errors import ConfigError, KvterraceError
from .options import default_uds
from .score_cli import score
from .security.flags import ClientTyper
from .serve import serve as run_serve
from .serve_flags import add_serve
from .service.admin import NoSidecar, clear_store, fetch_status, flush_store, retain_blocks
from .service.channel import Address
from .status_view import status_json, status_tables
from .tenants.cli import quota
from .token_file import read_token_ids
from .trace_cli import trace_app

COMMAND_GROUP = "kvterrace.commands"
CALL_TIMEOUT_S = 3.0

T = TypeVar("T")
AddressOption = Annotated[
    str | None,
    typer.Option("--address", help="unix:/PATH or HOST:PORT of the sidecar.", show_default="this user's socket"),
]

app = ClientTyper(
    name="kvterrace",
    help="A KV cache beside your LLM engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.add_typer(trace_app)


def _serve(config: Path | None, **flags: object) -> None:
    """Run the store of this host until SIGTERM or Ctrl-C. Flags win over KVTERRACE_* variables over --config."""
    try:
        asyncio.run(run_serve(load_config(flags, config), announce=typer.echo))
    except KvterraceError as error:
        _fail("serve", str(error), 2)


add_serve(app, _serve)


@app.command("status")
def status(
    address: AddressOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Also recount every slot and lease.")] = False,
) -> None:
    """Show what a sidecar holds. Exit code 1 when none answers, or when the recount finds a fault."""
    reply = _ask("status", fetch_status(_address(address), check=check, timeout_s=CALL_TIMEOUT_S))
    if as_json:
        typer.echo(status_json(reply))
    else:
        console = Console()
        for part in status_tables(reply):
            console.print(part)
    if reply.check_error:
        _fail("status", f"the recount found a fault: {reply.check_error}", 1)


@app.command("clear")
def clear(
    address: AddressOption = None,
    namespace: Annotated[str | None, typer.Option(help="Fingerprint in hex of the one to clear; else all.")] = None,
    tenant: Annotated[str, typer.Option(help="Clear all namespaces of this tenant.")] = "",
) -> None:
    """Drop what a sidecar holds, in every tier and for good; blocks being read go when their readers are done."""
    fingerprint = _fingerprint("clear", namespace)
    call = clear_store(_address(address), fingerprint, timeout_s=CALL_TIMEOUT_S, tenant=tenant)
    dropped = _ask("clear", call)
    typer.echo(f"dropped {dropped} blocks")


@app.command("flush")
def flush(
    address: AddressOption = None,
    deadline: Annotated[float, typer.Option(help="Seconds it may take.")] = 60.0,
) -> None:
    """Write what waits for the NVMe tier and sync it. Exit code 1 when that was not done by the deadline."""
    reply = _ask("flush", flush_store(_address(address), deadline_s=deadline, timeout_s=CALL_TIMEOUT_S))
    if not reply.done:
        _fail("flush", f"{reply.pending_blocks} blocks are not written yet", 1)
    typer.echo("everything is written")


app.command("drain")(drain)
app.command("score")(score)
app.command("quota")(quota)


NamespaceOption = Annotated[str, typer.Option(help="Fingerprint in hex, as `kvterrace status --json` has it.")]
TokensOption = Annotated[
    Path | None, typer.Option(help="File of token ids (numbers, in JSON or apart by blanks): only this prefix.")
]


@app.command("pin")
def pin(namespace: NamespaceOption, tokens: TokensOption = None, address: AddressOption = None) -> None:
    """Let blocks leave last, within the store's budget for pins (--pin-share of serve)."""
    _retain("pin", address, namespace, tokens, pinned=True)


@app.command("unpin")
def unpin(namespace: NamespaceOption, tokens: TokensOption = None, address: AddressOption = None) -> None:
    """Take back a pin."""
    _retain("unpin", address, namespace, tokens, pinned=False)


@app.command("ttl")
def ttl(
    seconds: Annotated[float, typer.Argument(help="Without use, until a block leaves first; 0 = no limit.")],
    namespace: NamespaceOption,
    tokens: TokensOption = None,
    address: AddressOption = None,
) -> None:
    """Let blocks leave first once nobody has used them for so long."""
    _retain("ttl", address, namespace, tokens, ttl_s=seconds)


@app.command("priority")
def priority(
    value: Annotated[int, typer.Argument(help="0 (first to leave) to 100; 50 is everyone's.")],
    namespace: NamespaceOption,
    tokens: TokensOption = None,
    address: AddressOption = None,
) -> None:
    """Say how much blocks are worth keeping."""
    _retain("priority", address, namespace, tokens, priority=value)


@app.command("version")
def show_version() -> None:
    """Print the version."""
    typer.echo(f"kvterrace {version('kvterrace')}")


def main() -> NoReturn:
    """The console script."""
    # Not for a command of our own: the engine's would load torch into the sidecar.
    ours = [each.name for each in (*app.registered_commands, *app.registered_groups)]
    if sys.argv[1:2] not in [[name] for name in ours]:
        add_entry_points(app, entry_points(group=COMMAND_GROUP))
    app()
    raise SystemExit(0)


def add_entry_points(program: typer.Typer, found: Iterable[EntryPoint]) -> None:
    """Let each entry point register its sub-commands; one whose extra is missing becomes a sub-command that says so."""
    for entry in sorted(found, key=lambda entry: entry.name):
        try:
            register = entry.load()
        except ImportError as error:
            _add_missing(program, entry.name, error)
        else:
            register(program)


def _add_missing(program: typer.Typer, name: str, error: ImportError) -> None:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}

    @program.command(name, context_settings=anything, help="(needs pip install 'kvterrace[engine]')")
    def missing() -> None:  # pyright: ignore[reportUnusedFunction]  # typer calls it
        _fail(name, f"{error}; it comes with: pip install 'kvterrace[engine]'", 2)


def _retain(command: str, address: str | None, namespace: str, tokens: Path | None, **said: Any) -> None:
    """Set one field of the retention of a prefix or a namespace."""
    try:
        wish = Retention(**said)
        packed = pack_tokens(read_token_ids(tokens)) if tokens is not None else b""
    except (FieldError, ConfigError) as error:
        _fail(command, str(error), 2)
    call = retain_blocks(
        _address(address), _fingerprint(command, namespace), packed, wish, list(said), timeout_s=CALL_TIMEOUT_S
    )
    typer.echo(f"{_ask(command, call)} blocks")


def _fingerprint(command: str, namespace: str | None) -> bytes:
    try:
        return bytes.fromhex(namespace or "")
    except ValueError:
        _fail(command, f"--namespace: {namespace!r} is not hexadecimal", 2)


def _address(given: Address | None) -> Address:
    return given or f"unix:{default_uds()}"


def _ask(command: str, call: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(call)
    except NoSidecar as error:
        _fail(command, str(error), 1)
    except (KvterraceError, ValueError) as error:
        _fail(command, str(error), 2)


def _fail(command: str, message: str, code: int) -> NoReturn:
    typer.echo(f"kvterrace {command}: {message}", err=True)
    sys.exit(code)
