"""The `kvterrace quality` sub-command. torch is imported only when it runs."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from .quality import Quality

PROGRAM = "kvterrace quality"
CODECS = ("fp8", "int8")
REPORT_COLUMNS = 100  # where the output is no terminal, whose width nobody knows


def register(app: typer.Typer) -> None:
    """Add `quality` to the program's commands."""
    app.command("quality")(quality)


def quality(  # noqa: PLR0913, PLR0917  one argument a flag
    model: Annotated[Path, typer.Argument(help="GGUF file or Hugging Face directory.")],
    codec: Annotated[list[str] | None, typer.Option(help="fp8 or int8; may be repeated. Default: both.")] = None,
    prompts: Annotated[
        Path | None, typer.Option(help="Text, or .jsonl of strings or of objects with a prompt. Default: the README.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Prompts at most.")] = 8,
    prompt_tokens: Annotated[int, typer.Option(min=2, help="Tokens of a prompt at most.")] = 512,
    judged_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each that are computed and judged.")] = 64,
    block_tokens: Annotated[int, typer.Option(min=1, max=256, help="Tokens in a block.")] = 16,
    device: Annotated[str, typer.Option(help="torch device, such as cpu or cuda:0.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    max_kl: Annotated[
        float | None, typer.Option(min=0, help="Exit with 1 when the mean KL, in nats, is above.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure what a lossy KV codec does to a model's next-token distribution."""
    codecs = list(dict.fromkeys(codec or CODECS))
    for name in codecs:
        if name not in CODECS:
            _fail(f"--codec: {name!r} is none of {', '.join(CODECS)}")
    try:
        from .model import load_model  # noqa: PLC0415  the engine extra may be missing, and torch takes seconds
        from .quality import cut_prompts, measure, read_prompts  # noqa: PLC0415
        from .server.launch import DTYPES, find_device  # noqa: PLC0415
    except ImportError as error:
        _fail(f"{error}; it comes with: pip install 'kvterrace[engine]'")
    if dtype != "auto" and dtype not in DTYPES:
        _fail(f"--dtype: {dtype!r} is none of auto, {', '.join(DTYPES)}")
    try:
        texts = read_prompts(prompts)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task("loading the model", total=None)
            loaded = load_model(model, device=find_device(device), dtype=DTYPES.get(dtype))
            sizes = {"prompt_tokens": prompt_tokens, "judged_tokens": judged_tokens, "block_tokens": block_tokens}
            cuts = cut_prompts(texts, loaded.tokenizer, most=count, **sizes)
            progress.update(task, description="prompts", total=len(cuts))
            found = measure(
                loaded, cuts, codecs, block_tokens=block_tokens, done=lambda: progress.update(task, advance=1)
            )
    except (ValueError, OSError, RuntimeError) as error:
        _fail((str(error).strip() or type(error).__name__).splitlines()[0])
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(result) for result in found]))
    else:
        show(found, loaded.name)
    worst = max(found, key=lambda result: result.kl_mean)
    if max_kl is not None and worst.kl_mean > max_kl:
        typer.echo(f"{PROGRAM}: {worst.codec} has a mean KL of {worst.kl_mean:.3g} nats, above {max_kl:g}", err=True)
        sys.exit(1)


def show(found: "Sequence[Quality]", name: str) -> None:
    """The table for people."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=REPORT_COLUMNS)
    first = found[0]
    table = Table(
        title=f"{name}: {first.positions} positions in {first.prompts} prompts, {first.reused_tokens} tokens reused"
    )
    table.add_column("codec")
    for column in ("KL mean", "KL p99", "same first choice", "max |Δlogit|", "bytes of a block", "saved"):
        table.add_column(column, justify="right")
    for result in found:
        table.add_row(
            result.codec,
            f"{result.kl_mean:.2e}",
            f"{result.kl_p99:.2e}",
            f"{result.top1:.2%}",
            f"{result.logit_delta:.3f}",
            f"{result.stored_bytes:,} of {result.exact_bytes:,}",
            f"{1 - result.stored_bytes / result.exact_bytes:.1%}",
        )
    console.print(table)


def _fail(message: str) -> NoReturn:
    typer.echo(f"{PROGRAM}: {message}", err=True)
    sys.exit(2)
