"""The `kvterrace` program: a table of its sub-commands. Each is a file in commands/, imported when it runs.

Those of other folders join by the entry-point group `kvterrace.commands`; in the table they have no file. A user's
mistake ends in one line on stderr and exit code 2 (1 when no sidecar answers), never in a traceback.
"""

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

import typer

from .lazy import COMMAND_GROUP, Lazy, LazyGroup, register

# A new command is a line here: its name, what --help says of it, and its file and function (or Typer).
COMMANDS = (
    Lazy("serve", "Run the store of this host.", "commands.serve:serve_app"),
    Lazy("status", "Show what a sidecar holds.", "commands.status:status"),
    Lazy("top", "Watch a sidecar: rates, tiers, misses, last requests.", "commands.top:top"),
    Lazy("ls", "List what a sidecar holds: namespaces, then prefixes.", "commands.ls:ls"),
    Lazy("show", "Show one stored prefix.", "commands.show:show"),
    Lazy("why", "Say why a request or a prompt is not reused further.", "commands.why:why"),
    Lazy("lint", "Show where prompts break off early what they share.", "commands.lint:lint"),
    Lazy("warm", "Bring prompts into the cache before they are asked for.", "commands.warm:warm"),
    Lazy("clear", "Drop what a sidecar holds, in every tier and for good.", "commands.clear:clear"),
    Lazy("flush", "Have a sidecar write what waits for NVMe.", "commands.clear:flush"),
    Lazy("pin", "Let blocks leave last.", "commands.retain:pin"),
    Lazy("unpin", "Take back a pin.", "commands.retain:unpin"),
    Lazy("ttl", "Let blocks leave first once nobody used them for so long.", "commands.retain:ttl"),
    Lazy("priority", "Say how much blocks are worth keeping.", "commands.retain:priority"),
    Lazy("quota", "Set a tenant's limits.", "commands.quota:quota"),
    Lazy("score", "Show how much of a prompt each node and engine has.", "commands.score:score"),
    Lazy("drain", "Have a node hand its hottest blocks over and leave.", "commands.drain:drain"),
    Lazy("load", "Measure an endpoint under load, or compare two.", "commands.load:load"),
    Lazy("verify", "Check a deployment: right bytes, with and without the cache.", "commands.verify:verify"),
    Lazy("doctor", "Look for what is wrong on this host.", "commands.doctor:doctor"),
    Lazy("size", "Say how much a model's cache takes, and what fits.", "commands.size:size"),
    Lazy("bench", "Measure what this machine gives kvterrace.", "commands.bench:bench"),
    Lazy("trace", "Replay request traces, size a cache by them, capture them.", "commands.trace:trace_app"),
    Lazy("engine", "Serve a model over the OpenAI API."),
    Lazy("demo", "See a shared prefix reused from every tier, on a real model."),
    Lazy("quality", "Measure what a lossy KV codec does to a model."),
    Lazy("tokenizer", "Write a model's tokenizer.json.", entry="engine"),
    Lazy("version", "Print the version.", "commands.status:show_version"),
)


class _Program(LazyGroup):
    table = COMMANDS


app = typer.Typer(
    name="kvterrace",
    cls=_Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _program() -> None:  # pyright: ignore[reportUnusedFunction]  # typer shows its words
    """A KV cache beside your LLM engine."""


def main() -> NoReturn:
    """The console script."""
    # Not for a command that is known: others' could load torch into the sidecar.
    if sys.argv[1:2] not in [[each.name] for each in COMMANDS]:
        known = {each.entry or each.name for each in COMMANDS if not each.where}
        add_entry_points(app, [each for each in entry_points(group=COMMAND_GROUP) if each.name not in known])
    app()
    raise SystemExit(0)


def add_entry_points(program: typer.Typer, found: Iterable[EntryPoint]) -> None:
    """Let each entry point register its sub-commands; one whose extra is missing becomes a sub-command that says so."""
    for entry in sorted(found, key=lambda entry: entry.name):
        register(program, entry)
