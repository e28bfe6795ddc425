"""`kvterrace warm`: prompts brought into the cache before they are asked for."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..errors import ConfigError
from ..prompts import count_lines, read_prompts
from ..status_view import count
from ..text import load_tokenizer
from ..warmer import EngineWarmer, SidecarWarmer, Warmed, Warmer, warm_all
from .common import (
    AddressOption,
    JsonOption,
    NamespaceOption,
    address_of,
    fail,
    fingerprint_of,
    only_namespace,
    print_json,
)
from .engines import CaOption, KeyOption, engines_of


def warm(  # noqa: PLR0913, PLR0917  # a flag is a parameter
    file: Annotated[
        Path, typer.Argument(help='JSON lines: a text, or {"prompt": text or token ids}, or {"messages": [...]}.')
    ],
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="URL", help="Prefill through this engine, which computes what is missing."),
    ] = None,
    namespace: NamespaceOption = None,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.json for texts, without --engine.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Prompts at once.")] = 4,
    start: Annotated[int, typer.Option(min=0, help="Leave out so many prompts: those that are done.")] = 0,
    deadline: Annotated[float, typer.Option(min=0.01, max=600.0, help="Seconds that one prompt may take.")] = 60.0,
    address: AddressOption = None,
    api_key_file: KeyOption = None,
    engine_ca: CaOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring prompts into the cache before they are asked for: through a sidecar, which brings up to DRAM what it has
    on disk or finds on other nodes, or through an engine (--engine), which computes what nobody has. Ends with exit
    code 1 when a prompt failed; says from which one to go on."""
    try:
        total = count_lines(file)
        made = load_tokenizer(tokenizer, "--tokenizer") if tokenizer is not None else None
    except ConfigError as error:
        fail("warm", str(error), 2)
    if engine is not None:
        (http,) = engines_of("warm", [engine], api_key_file, engine_ca, deadline)
        warmer: Warmer = EngineWarmer(http)
    else:
        to = address_of(address)
        space = fingerprint_of("warm", to, namespace) or only_namespace("warm", to)
        warmer = SidecarWarmer(to, space, made, deadline)
    with closing(warmer):
        done = _run(file, warmer, total, start, concurrency)
    if as_json:
        print_json(done.to_json())
    else:
        typer.echo(said(done))
    if done.failed or done.stopped:
        why = done.stopped or f"{count(done.failed, 'prompt')} failed, first: {done.first_error}"
        fail("warm", f"{why}; go on with --start {done.leading}", 2 if done.mistake else 1)


def said(done: Warmed) -> str:
    """What came of it, for people."""
    by = ", ".join(f"{tokens:,} {tier}" for tier, tokens in sorted(done.tokens.items())) or "none"
    return f"warmed {count(done.prompts, 'prompt')}; their tokens: {by}"


def _run(file: Path, warmer: Warmer, total: int, start: int, concurrency: int) -> Warmed:
    """With a bar on stderr while it takes."""
    shown = Console(stderr=True)
    columns = (TextColumn("warming"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("", total=total, completed=start)
        step: Callable[[], None] = lambda: bar.advance(task)  # noqa: E731
        try:
            return warm_all(read_prompts(file, start), warmer, start=start, concurrency=concurrency, step=step)
        except ConfigError as error:
            fail("warm", str(error), 2)
