"""`kvterrace trace`: replay a request trace through the store's own policies, ask what other sizes would do, or write a
trace of a running sidecar down. A sub-application; the program mounts it.
"""

import asyncio
import itertools
import json
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import grpc
import grpc.aio
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ..errors import KvterraceError
from ..options import default_uds, parse_size
from ..placement.admission import ADMISSIONS
from ..placement.policies import DEFAULT_POLICY, POLICY_NAMES, make_policy
from ..security.flags import ClientTyper
from ..service.admin import NoSidecar, fetch_status
from ..service.channel import Address, open_channel
from ..service.stub import trace_call
from ..sim.capacity import Capacity, parse_capacity, parse_nvme_capacity
from ..sim.capture import Captured, capture, open_out
from ..sim.charts import check_out, terminal_chart, write_chart
from ..sim.outcome import Setup, Speeds
from ..sim.replay import replay
from ..sim.report import Study, bad_lines, run_table, study_table, trace_lines
from ..sim.trace import read_trace

# Of Llama 3.1 8B in bfloat16: 32 layers, 8 KV heads of 128, keys and values. Only a default, and said in every report.
DEFAULT_TOKEN_BYTES = 128 << 10
CHART_WIDTH = 100
CALL_TIMEOUT_S = 3.0
MODES = {"inclusive": False, "exclusive": True}

T = TypeVar("T")
FileArgument = Annotated[Path, typer.Argument(help="JSON lines with hash_ids, or Azure's CSV; either may be gzipped.")]
BlockBytesOption = Annotated[
    str | None,
    typer.Option("--block-bytes", help="KV bytes of one block of the trace. Default: 128KiB a token, as Llama 3.1 8B."),
]
BlockTokensOption = Annotated[
    int | None,
    typer.Option("--block-tokens", min=1, help="Tokens of one block of the trace. Default: as its lengths imply."),
]
NvmeOption = Annotated[str | None, typer.Option("--nvme", help="NVMe below DRAM, a size or blocks. Default: none.")]
AdmissionOption = Annotated[
    str, typer.Option("--admission", help=f"What is written to NVMe: {', '.join(sorted(ADMISSIONS))}.")
]
ModeOption = Annotated[
    str,
    typer.Option("--mode", help="inclusive: NVMe gets what is committed; exclusive: only what is about to leave DRAM."),
]
PrefillOption = Annotated[
    float, typer.Option("--prefill-tokens-per-s", min=0, help="Speed of computing, to say what is saved in seconds.")
]
DramSpeedOption = Annotated[str, typer.Option("--dram-bytes-per-s", help="Speed of loading from DRAM.")]
NvmeSpeedOption = Annotated[str, typer.Option("--nvme-bytes-per-s", help="Speed of loading from NVMe.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

trace_app = ClientTyper(
    name="trace",
    help="Replay request traces, size a cache by them, capture them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@trace_app.command("replay")
def replay_command(  # noqa: PLR0913, PLR0917  # a flag is a parameter
    file: FileArgument,
    dram: Annotated[str, typer.Option("--dram", help='Size of the DRAM tier, such as 8GiB or "5859blocks".')],
    nvme: NvmeOption = None,
    policy: Annotated[str, typer.Option("--policy", help=f"One of {', '.join(POLICY_NAMES)}.")] = DEFAULT_POLICY,
    block_bytes: BlockBytesOption = None,
    block_tokens: BlockTokensOption = None,
    admission: AdmissionOption = "all",
    mode: ModeOption = "inclusive",
    prefill_tokens_per_s: PrefillOption = 0.0,
    dram_bytes_per_s: DramSpeedOption = "20GB",
    nvme_bytes_per_s: NvmeSpeedOption = "3GB",
    as_json: JsonOption = False,
) -> None:
    """Run a trace through one configuration: hits by tier, evictions, bytes moved, how far from the best."""
    with _reported("replay"):
        speeds = _speeds(prefill_tokens_per_s, dram_bytes_per_s, nvme_bytes_per_s)
        study = _study(file, block_tokens, block_bytes, speeds)
        _run(study, [dram], [policy], nvme, admission, mode)
        if as_json:
            typer.echo(json.dumps(study.to_json(), indent=1))
            return
        _say(trace_lines(study), bad_lines(study.trace))
        Console().print(run_table(study, study.runs[0]))


@trace_app.command("what-if")
def what_if_command(  # noqa: PLR0913, PLR0917  # a flag is a parameter
    file: FileArgument,
    dram: Annotated[str, typer.Option("--dram", help="Sizes of the DRAM tier, with commas: 1GiB,2GiB,4GiB.")],
    policy: Annotated[str, typer.Option("--policy", help="Policies, with commas.")] = DEFAULT_POLICY,
    nvme: NvmeOption = None,
    block_bytes: BlockBytesOption = None,
    block_tokens: BlockTokensOption = None,
    admission: AdmissionOption = "all",
    mode: ModeOption = "inclusive",
    prefill_tokens_per_s: PrefillOption = 0.0,
    dram_bytes_per_s: DramSpeedOption = "20GB",
    nvme_bytes_per_s: NvmeSpeedOption = "3GB",
    out: Annotated[Path | None, typer.Option("--out", help="Also draw into this .png, .svg or .html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a trace through several sizes and policies: what each would hit, beside the best possible."""
    with _reported("what-if"):
        speeds = _speeds(prefill_tokens_per_s, dram_bytes_per_s, nvme_bytes_per_s)
        if out is not None:
            check_out(out)
        study = _study(file, block_tokens, block_bytes, speeds)
        _run(study, _list("--dram", dram), _list("--policy", policy), nvme, admission, mode)
        if out is not None:
            write_chart(study, out)
        if as_json:
            typer.echo(json.dumps(study.to_json(), indent=1))
            return
        _say(trace_lines(study), bad_lines(study.trace))
        console = Console()
        console.print(study_table(study))
        chart = terminal_chart(study, min(console.width, CHART_WIDTH))
        if chart and console.is_terminal:
            sys.stdout.write(f"{chart}\n")


@trace_app.command("capture")
def capture_command(
    out: Annotated[Path, typer.Option("--out", help="File to write; compressed if its name ends in .gz.")],
    address: Annotated[
        str | None,
        typer.Option("--address", help="unix:/PATH or HOST:PORT of the sidecar. Default: this user's socket."),
    ] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.0, help="Stop after so long.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", min=1, help="Stop after so many requests.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write down what a sidecar is asked for, as salted hashes, until Ctrl-C or the limit given."""
    with _reported("capture"):
        done, ended = asyncio.run(_capture(address or f"unix:{default_uds()}", out, seconds, requests))
        lost = f"; {done.lost:,} more came too fast and were lost" if done.lost else ""
        if as_json:
            typer.echo(json.dumps({"requests": done.requests, "lost": done.lost, "out": str(out)}))
        else:
            typer.echo(f"{done.requests:,} requests in {out}{lost}")
        if ended:
            _fail("capture", ended, 1)


async def _capture(address: Address, out: Path, seconds: float | None, requests: int | None) -> tuple[Captured, str]:
    """What was captured, and how the stream failed, if it did. NoSidecar before anything is written."""
    done, loop = Captured(), asyncio.get_running_loop()
    await fetch_status(address, check=False, timeout_s=CALL_TIMEOUT_S)
    async with open_channel(address) as channel:
        with open_out(out) as file:
            typer.echo(f"capturing from {address}; Ctrl-C ends it", err=True)
            try:
                async with asyncio.timeout(seconds) as limit:
                    for number in (signal.SIGINT, signal.SIGTERM):
                        loop.add_signal_handler(number, lambda: limit.reschedule(loop.time()))
                    await capture(trace_call(channel), file, done, requests=requests)
            except TimeoutError:
                pass
            except grpc.aio.AioRpcError as error:
                return done, f"the sidecar at {address} went away: {error.details() or error.code().name}"
    return done, ""


def _speeds(prefill_tokens_per_s: float, dram_bytes_per_s: str, nvme_bytes_per_s: str) -> Speeds:
    return Speeds(
        prefill_tokens_per_s,
        _checked("--dram-bytes-per-s", lambda: parse_size(dram_bytes_per_s)),
        _checked("--nvme-bytes-per-s", lambda: parse_size(nvme_bytes_per_s)),
    )


def _study(file: Path, block_tokens: int | None, block_bytes: str | None, speeds: Speeds) -> Study:
    """Read the trace; KvterraceError when it cannot be simulated."""
    with _progress(f"reading {file.name}") as advance:
        trace = read_trace(file, advance)
    if not trace.prefixes:
        raise KvterraceError(
            f"{file} has {len(trace.requests):,} requests, {trace.input_tokens:,} tokens in {trace.duration_s:,.0f} s, "
            "and their lengths only: it does not say which prompts begin alike, so no hits can be simulated"
        )
    tokens = block_tokens or trace.block_tokens
    if not tokens:
        raise KvterraceError(f"{file} does not say how many tokens a block has: give --block-tokens")
    size = _checked("--block-bytes", lambda: parse_size(block_bytes)) if block_bytes else tokens * DEFAULT_TOKEN_BYTES
    return Study(trace, block_tokens=tokens, block_bytes=size, speeds=speeds)


def _run(
    study: Study, drams: Sequence[str], policies: Sequence[str], nvme: str | None, admission: str, mode: str
) -> None:
    """Every size under every policy."""
    makers = {name: make_policy(_known("--policy", name, POLICY_NAMES)) for name in policies}
    admit, exclusive = ADMISSIONS[_known("--admission", admission, ADMISSIONS)], MODES[_known("--mode", mode, MODES)]
    size = study.block_bytes
    sizes = dict.fromkeys(_checked("--dram", lambda text=text: parse_capacity(text, size)) for text in drams)
    below: Capacity | None = _checked("--nvme", lambda: parse_nvme_capacity(nvme, size)) if nvme else None
    requests = len(study.trace.requests)
    total = requests * len(sizes) * len(policies)
    with _progress("simulating") as advance:
        for number, (dram, policy) in enumerate((dram, policy) for dram in sizes for policy in policies):
            setup = Setup(
                makers[policy],
                study.block_tokens,
                size,
                dram.blocks,
                below.blocks if below else 0,
                admission=admit,
                exclusive=exclusive,
                speeds=study.speeds,
            )
            done = number * requests
            outcome = replay(study.trace, setup, lambda at, done=done: advance(done + at, total))
            study.add(policy, dram, below, outcome)


def _list(flag: str, text: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise KvterraceError(f"{flag}: {text!r} names nothing")
    return list(dict.fromkeys(found))


def _known(flag: str, name: str, names: Iterable[str]) -> str:
    if name not in names:
        raise KvterraceError(f"{flag}: there is no {name!r}; there are {', '.join(names)}")
    return name


def _checked(flag: str, parse: Callable[[], T]) -> T:
    try:
        return parse()
    except ValueError as error:
        raise KvterraceError(f"{flag}: {error}") from None


@contextmanager
def _progress(what: str) -> Generator[Callable[[int, int], None]]:
    """A bar on stderr while it takes; call with what is done and the total."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def _reported(command: str) -> Generator[None]:
    """A user's mistake ends in one line."""
    try:
        yield
    except NoSidecar as error:
        _fail(command, str(error), 1)
    except (KvterraceError, ValueError) as error:
        _fail(command, str(error), 2)


def _say(*parts: Iterable[str]) -> None:
    for line in itertools.chain(*parts):
        typer.echo(line)


def _fail(command: str, message: str, code: int) -> NoReturn:
    typer.echo(f"kvterrace trace {command}: {message}", err=True)
    raise typer.Exit(code)
