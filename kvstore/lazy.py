"""LazyGroup: a program whose sub-commands are imported when they run. Most of a short command's time would go into the
imports of all the others."""

import importlib
from collections.abc import Generator, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

COMMAND_GROUP = "kvterrace.commands"
PACKAGE = __name__.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Lazy:
    """A sub-command. help: what the list of all says. where: "module:name" within kvstore of its function, or of a
    Typer of its own; "" = another folder brings it, by the entry point of its name or, where it has none of its own,
    by that of `entry`."""

    name: str
    help: str
    where: str = ""
    entry: str = ""

    def load(self) -> Any:
        """The command, as typer has it."""
        if not self.where:
            return _brought(self)
        module, _, name = self.where.partition(":")
        found = getattr(importlib.import_module(f"{PACKAGE}.{module}"), name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        from .security.flags import ClientTyper  # noqa: PLC0415  # most of --help's time

        program = ClientTyper(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        program.command(self.name)(found)
        return typer.main.get_command(program)


class _Commands(MutableMapping[str, Any]):
    """By name; what is Lazy yet is imported when it is asked for."""

    def __init__(self, commands: Mapping[str, Any]) -> None:
        self._all = dict(commands)

    def __getitem__(self, name: str) -> Any:
        found = self._all[name]
        if isinstance(found, Lazy):
            found = self._all[name] = found.load()
        return found

    def __setitem__(self, name: str, command: Any) -> None:
        self._all[name] = command

    def __delitem__(self, name: str) -> None:
        del self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def listed(self, name: str) -> Any:
        """As `get`, where name and help are enough."""
        found = self._all.get(name)
        return TyperCommand(name, help=found.help, rich_markup_mode=None) if isinstance(found, Lazy) else found


class LazyGroup(TyperGroup):
    """`table` is the subclass's; commands that were added to the Typer come after it."""

    table: tuple[Lazy, ...] = ()

    def __init__(self, *, commands: Mapping[str, Any] | None = None, **attrs: Any) -> None:
        self._known = _Commands({**{each.name: each for each in self.table}, **(commands or {})})
        self._listing = False
        known: Any = self._known  # typer wants a dict, and uses it as a mapping
        super().__init__(commands=known, **attrs)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self._known)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return self._known.listed(cmd_name) if self._listing else self._known.get(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with self._names_are_enough():
            super().format_commands(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with self._names_are_enough():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _names_are_enough(self) -> Generator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


def register(program: typer.Typer, entry: EntryPoint) -> None:
    """Let an entry point add its sub-commands; one whose extra is missing becomes a sub-command that says so."""
    try:
        add = entry.load()
    except ImportError as error:
        _add_missing(program, entry.name, error)
    else:
        add(program)


def _brought(wanted: Lazy) -> Any:
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    for entry in entry_points(group=COMMAND_GROUP, name=wanted.entry or wanted.name):
        register(program, entry)
    found = typer.main.get_group(program).commands.get(wanted.name)
    if found is not None:
        return found
    _add_missing(program, wanted.name, ImportError("this installation has no such command"))
    return typer.main.get_group(program).commands[wanted.name]


def _add_missing(program: typer.Typer, name: str, error: ImportError) -> None:
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": list[str]()}

    @program.command(name, context_settings=anything, help="(needs pip install 'kvterrace[engine]')")
    def missing() -> NoReturn:  # pyright: ignore[reportUnusedFunction]  # typer calls it
        typer.echo(f"kvterrace {name}: {error}; it comes with: pip install 'kvterrace[engine]'", err=True)
        raise typer.Exit(2)
