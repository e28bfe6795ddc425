"""`kvterrace load`: what users of an OpenAI-compatible endpoint would see at a given rate."""

import asyncio
import json
import signal
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import KvterraceError
from ..load.scenarios import NAMES
from .common import JsonOption, fail

if TYPE_CHECKING:
    from ..load.plan import Plan
    from ..load.report import Report

COMMAND = "load"


def load(  # noqa: PLR0913, PLR0917  # a flag is a parameter
    url: Annotated[str, typer.Argument(metavar="URL", help="Of the endpoint, such as http://127.0.0.1:8000/v1.")],
    scenario: Annotated[str | None, typer.Option(help=f"One of {', '.join(NAMES)}. Default: steady.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Replay this: JSON lines with hash_ids, or Azure's CSV; perhaps gzipped.")
    ] = None,
    rate: Annotated[float, typer.Option(help="Requests a second, on average.", min=0.001, max=10_000)] = 1.0,
    duration: Annotated[
        float | None, typer.Option(help="Seconds in which requests come. Default: 60, or the whole trace.", min=0.1)
    ] = None,
    requests: Annotated[int | None, typer.Option(help="No more than so many.", min=1)] = None,
    alone: Annotated[int, typer.Option(help="Requests sent one at a time before; 0 = none.", min=0, max=10_000)] = 5,
    concurrency: Annotated[int, typer.Option(help="Most requests under way at a time.", min=1, max=20_000)] = 256,
    prompt_tokens: Annotated[int, typer.Option(help="Tokens of a prompt, about.", min=1, max=10_000_000)] = 1024,
    output_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1, max=1_000_000)] = 64,
    shared: Annotated[float, typer.Option(help="Share of a prompt that its group begins with.", min=0, max=1)] = 0.5,
    groups: Annotated[int, typer.Option(help="Different such beginnings.", min=1, max=1_000_000)] = 4,
    turns: Annotated[int, typer.Option(help="Requests of one conversation.", min=1, max=1000)] = 5,
    think: Annotated[float, typer.Option(help="Seconds between an answer and the next turn, on average.", min=0)] = 1.0,
    speed: Annotated[float, typer.Option(help="Of a trace: 2 = twice as fast as recorded.", min=0.001)] = 1.0,
    token_scale: Annotated[
        float, typer.Option(help="Of a trace: 0.5 = prompts and answers of half as many tokens.", min=0.0001, max=100)
    ] = 1.0,
    slo: Annotated[str, typer.Option(help="What is well served, in seconds: ttft=0.5,itl=0.05; also gap, e2e.")] = "",
    timeout: Annotated[float, typer.Option(help="Seconds until a request is given up.", min=0.01)] = 120.0,
    model: Annotated[str, typer.Option(help="Name in requests. Default: what the endpoint lists first.")] = "",
    api: Annotated[str, typer.Option(help="chat or completions.")] = "chat",
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Answers of exactly --output-tokens; vLLM, SGLang and kvterrace can.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Same seed, same requests. Default: another one each time.")] = None,
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Shown as Bearer.", show_default=False)] = "",
    tls_ca: Annotated[Path | None, typer.Option(help="PEM file of the CA of an https endpoint.")] = None,
    out: Annotated[
        list[Path] | None, typer.Option(help="Write the report to this .json or .html. May be repeated.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Show this earlier report (.json, of --out) beside the new one.")
    ] = None,
    min_goodput: Annotated[
        float | None, typer.Option(help="Exit with 1 when a smaller share of requests met --slo.", min=0, max=1)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask an OpenAI-compatible endpoint as many users would, and tell what they would have seen. Ctrl-C ends it with
    the report of what was measured."""
    given = dict(locals())
    settings = {name: value for name, value in given.items() if name not in {"api_key", "as_json", "out", "tls_ca"}}
    try:
        from ..load.plan import make_plan  # noqa: PLC0415  # aiohttp is an extra

        plan = make_plan(settings, out or [])
        tls = _tls(tls_ca, url)
    except ImportError as error:
        fail(COMMAND, f"{error}; it comes with: pip install 'kvterrace[load]'", 2)
    except (KvterraceError, ValueError) as error:
        fail(COMMAND, str(error), 2)
    report = _measured(plan, api_key, tls)
    _write(report, out or [])
    _show(report, as_json=as_json)
    _judge(report, min_goodput)


def _measured(plan: "Plan", api_key: str, tls: ssl.SSLContext | None) -> "Report":
    from ..load.endpoint import NobodyAnswers  # noqa: PLC0415  # see load()
    from ..load.plan import measure  # noqa: PLC0415
    from .load_progress import Progress  # noqa: PLC0415

    async def run() -> "Report":
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def begin() -> None:  # the second Ctrl-C ends the program
            stop.set()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, begin)
        with Progress(plan) as progress:
            return await measure(plan, api_key=api_key, tls=tls, stop=stop, watch=progress.watch)

    try:
        return asyncio.run(run())
    except NobodyAnswers as error:
        fail(COMMAND, str(error), 1)
    except (KvterraceError, ValueError) as error:
        fail(COMMAND, str(error), 2)


def _tls(ca: Path | None, url: str) -> ssl.SSLContext | None:
    if ca is None:
        return None
    if not url.startswith("https:"):
        raise ValueError("--tls-ca is for an endpoint of https://")
    try:
        return ssl.create_default_context(cafile=str(ca))
    except OSError as error:
        raise ValueError(f"--tls-ca: {ca} cannot be used: {error.strerror or error}") from None


def _write(report: "Report", out: list[Path]) -> None:
    makers: dict[str, Callable[[Report], str]] = {".json": _json, ".html": _html}
    for path in out:
        try:
            path.write_text(makers[path.suffix.lower()](report), encoding="utf-8")
        except OSError as error:
            fail(COMMAND, f"--out: {path} cannot be written: {error.strerror}", 2)
        typer.echo(f"wrote {path}", err=True)


def _json(report: "Report") -> str:
    return json.dumps(report.to_json(), indent=1)


def _html(report: "Report") -> str:
    from ..load.page import page  # noqa: PLC0415  # matplotlib is an extra, and slow to load

    return page(report)


def _show(report: "Report", *, as_json: bool) -> None:
    if as_json:
        typer.echo(_json(report))
        return
    from rich.console import Console  # noqa: PLC0415

    from ..load.report import notes, summary  # noqa: PLC0415
    from ..load.tables import change_table, count_table, latency_table  # noqa: PLC0415

    console = Console()
    console.print(latency_table(report))
    console.print(count_table(report))
    if report.before is not None:
        console.print(change_table(report))
    lines: list[Any] = [*summary(report), *(f"Note: {note}" for note in notes(report))]
    for line in lines:
        typer.echo(line)


def _judge(report: "Report", min_goodput: float | None) -> None:
    """The exit code, where it is not 0."""
    from ..load.report import goodput  # noqa: PLC0415

    tally = report.load
    if not any(each.ok for each in report.phases.values()):
        fail(COMMAND, "no request ended well", 1)
    if min_goodput is not None and (tally is None or goodput(tally) < min_goodput):
        share = goodput(tally) if tally is not None else 0.0
        typer.echo(
            f"kvterrace {COMMAND}: {share:.1%} met the objective, below --min-goodput {min_goodput:.1%}", err=True
        )
        sys.exit(1)
