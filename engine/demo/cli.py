"""The `kvterrace demo` sub-command."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .host import DemoOptions
from .processes import DemoError
from .run import run_demo

REPORT_COLUMNS = 100  # where the output is no terminal, whose width nobody knows


def register(app: typer.Typer) -> None:
    """Add `demo` to the program's commands."""
    app.command("demo")(demo)


def demo(
    model: Annotated[Path, typer.Argument(help="GGUF file or Hugging Face directory of the model.")],
    document: Annotated[list[Path] | None, typer.Option(help="Text of the shared prefix; may be repeated.")] = None,
    short: Annotated[bool, typer.Option("--short", help="One question instead of three.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the servers running until Ctrl-C.")] = False,
    dram: Annotated[str, typer.Option(help="Size of the sidecar's arena.")] = "1GiB",
    nvme: Annotated[str, typer.Option(help="What the sidecar may keep on disk, in a scratch folder.")] = "2GiB",
    cluster: Annotated[str, typer.Option(help="URL of a Valkey: show two hosts that share through it instead.")] = "",
) -> None:
    """Prefill a shared prefix once; see every later request, from either replica, reuse it."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=REPORT_COLUMNS)
    options = DemoOptions(model, tuple(document or ()), short=short, keep=keep, dram=dram, nvme=nvme, cluster=cluster)
    try:
        code = run_demo(options, console)
    except DemoError as error:
        Console(stderr=True).print(f"kvterrace demo: {error}", style="red", highlight=False, markup=False)
        code = 1
    raise typer.Exit(code)
