"""The `kvterrace` program. Sub-commands of other folders join by the entry-point group `kvterrace.commands`.

A user's mistake ends in one line on stderr and exit code 2 (1 when no sidecar answers), never in a traceback.
"""

import asyncio
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import NoReturn

import typer

from .commands.clear import clear, flush
from .commands.common import fail
from .commands.drain import drain
from .commands.quota import quota
from .commands.retain import pin, priority, ttl, unpin
from .commands.score import score
from .commands.status import show_version, status
from .commands.trace import trace_app
from .config import load_config
from .errors import KvterraceError
from .security.flags import ClientTyper
from .serve import serve as run_serve
from .serve_flags import add_serve

COMMAND_GROUP = "kvterrace.commands"

app = ClientTyper(
    name="kvterrace",
    help="A KV cache beside your LLM engine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _serve(config: Path | None, **flags: object) -> None:
    """Run the store of this host until SIGTERM or Ctrl-C. Flags win over KVTERRACE_* variables over --config."""
    try:
        asyncio.run(run_serve(load_config(flags, config), announce=typer.echo))
    except KvterraceError as error:
        fail("serve", str(error), 2)


add_serve(app, _serve)
app.command("status")(status)
app.command("clear")(clear)
app.command("flush")(flush)
app.command("drain")(drain)
app.command("score")(score)
app.command("quota")(quota)
app.command("pin")(pin)
app.command("unpin")(unpin)
app.command("ttl")(ttl)
app.command("priority")(priority)
app.command("version")(show_version)
app.add_typer(trace_app)


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
        fail(name, f"{error}; it comes with: pip install 'kvterrace[engine]'", 2)
