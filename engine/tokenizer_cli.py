"""The `kvterrace tokenizer` sub-command. torch is imported only when it runs."""

import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

PROGRAM = "kvterrace tokenizer"


def register(app: typer.Typer) -> None:
    """Add `tokenizer` to the program's commands."""
    app.command("tokenizer")(tokenizer)


def tokenizer(
    model: Annotated[Path, typer.Argument(help="GGUF file or Hugging Face directory.")],
    out: Annotated[Path, typer.Option(help="File to write; one that is there is replaced.")] = Path("tokenizer.json"),
) -> None:
    """Write a model's tokenizer as tokenizer.json, for serve --text and why --tokenizer. Weights are not read."""
    try:
        from .model import read_tokenizer  # noqa: PLC0415  the engine extra may be missing, and torch takes seconds
    except ImportError as error:
        _fail(f"{error}; it comes with: pip install 'kvterrace[engine]'")
    try:
        found = read_tokenizer(model)
        write(out, found.to_str(pretty=True))
    except (ValueError, OSError) as error:
        _fail((str(error).strip() or type(error).__name__).splitlines()[0])
    typer.echo(f"{out}: {found.get_vocab_size()} tokens")


def write(path: Path, text: str) -> None:
    """Whole or not at all: whoever reads the file meanwhile gets the old one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _fail(message: str) -> NoReturn:
    typer.echo(f"{PROGRAM}: {message}", err=True)
    sys.exit(2)
