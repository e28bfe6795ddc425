"""The demo's script: start a sidecar and two replicas, ask the same questions in six states of the cache.

The questions are first asked with nothing cached anywhere (between them everything is cleared), then again with the
prefix in A's HBM, in the sidecar's DRAM, from replica B, from A after a restart, and from A after the sidecar was
killed (SIGKILL) and started again, with the prefix on disk alone. Every answer must be the same text.
"""

import contextlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import metadata
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .client import Answer, Replica
from .host import DemoOptions, Host
from .processes import DemoError
from .report import PEER_ROWS, ROWS, Stage, machine_line, outputs_identical, show
from .two_hosts import TwoHosts

QUESTIONS = (
    "In one sentence, what is this document about?",
    "Which two commands should a newcomer run first?",
    "Name one thing this project refuses to do, and why.",
)
DOCUMENT_CHARACTERS = 8_000  # about 2,000 tokens of English with some code
MAX_TOKENS = 24


def shared_prefix(documents: tuple[Path, ...]) -> str:
    """The head of the given texts (by default the README that the package carries). DemoError when missing or short."""
    missing = [str(path) for path in documents if not path.is_file()]
    if missing:
        raise DemoError(f"--document: no such file: {', '.join(missing)}")
    text = "\n\n".join(path.read_text() for path in documents) or str(metadata("kvterrace").json["description"])
    if len(text) < DOCUMENT_CHARACTERS:
        raise DemoError(f"--document: {len(text)} characters in all, at least {DOCUMENT_CHARACTERS} are needed")
    return text[:DOCUMENT_CHARACTERS]


def measure(host: Host, document: str, questions: tuple[str, ...], step: Callable[[str], None]) -> list[Stage]:
    """Ask all questions in each of the six states. Returns the stages in the order of the table."""
    a, b = host.replicas["A"], host.replicas["B"]

    ask = _asking(document, questions, step)
    stages = [Stage("cold on A", "nowhere", ask(a, host.clear_everything))]
    stages.append(Stage("warm on A", "A's HBM", ask(a, lambda: None)))
    stages.append(Stage("A, its HBM cleared", "sidecar DRAM", ask(a, a.clear_hbm)))
    stages.append(Stage("B, never saw it", "sidecar DRAM", ask(b, b.clear_hbm)))
    host.restart("A")
    step("replica A was restarted")
    stages.append(Stage("A, restarted", "sidecar DRAM", ask(a, a.clear_hbm)))
    stages.append(Stage("A, sidecar killed", "NVMe", ask(a, host.kill_sidecar)))
    return stages


def measure_two(hosts: TwoHosts, document: str, questions: tuple[str, ...], step: Callable[[str], None]) -> list[Stage]:
    """Ask all questions on host 1 with nothing cached, then from its sidecar's DRAM, then on host 2, which has none."""
    a, b = hosts.one.replicas["A"], hosts.two.replicas["B"]
    ask = _asking(document, questions, step)
    stages = [Stage("cold on A", "nowhere", ask(a, hosts.clear_everything))]
    hosts.one.save_everything()
    stages.append(Stage("A, its HBM cleared", "its sidecar's DRAM", ask(a, a.clear_hbm)))
    stages.append(Stage("B, on the other host", "the other host", ask(b, hosts.two.clear_everything)))
    return stages


def _asking(
    document: str, questions: tuple[str, ...], step: Callable[[str], None]
) -> Callable[[Replica, Callable[[], None]], tuple[Answer, ...]]:
    """What asks a replica all questions, each after some preparation."""

    def ask(replica: Replica, before: Callable[[], None]) -> tuple[Answer, ...]:
        answers: list[Answer] = []
        for question in questions:
            before()
            answers.append(replica.ask(document, question, MAX_TOKENS))
            step(f"{replica.name}: {answers[-1].ttft_s:.3f} s, {_found(answers[-1])}")
        return tuple(answers)

    return ask


def _found(answer: Answer) -> str:
    missed = f" ({answer.miss_reason})" if answer.miss_reason else ""
    return f"{answer.cached_tokens} of {answer.prompt_tokens} tokens cached{missed}"


@contextmanager
def progress_steps(console: Console, total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar; where the output is no terminal, one line a step."""
    if not console.is_terminal:
        yield lambda text: console.print(f"  {text}")
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=total)
        yield lambda text: progress.update(task, advance=1, description=text)


def run_demo(options: DemoOptions, console: Console) -> int:
    """Run it. Returns the exit code: 0 only when all outputs are identical. DemoError when something did not start."""
    document = shared_prefix(options.documents)
    questions = QUESTIONS[:1] if options.short else QUESTIONS
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as SystemExit, so that the children are stopped too
    with ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="kvterrace-demo-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        servers = TwoHosts(options, scratch) if options.cluster else Host(options, scratch)
        stack.callback(servers.close)
        with progress_steps(console, total=4 + 6 * len(questions)) as step:
            servers.start(step)
            if isinstance(servers, TwoHosts):
                stages = measure_two(servers, document, questions, step)
            else:
                stages = measure(servers, document, questions, step)
        show(console, stages)
        if not outputs_identical(stages):
            console.print("The outputs differ: a cached prefix changed what the model said.", style="bold red")
        if options.keep:
            _show_addresses(servers, console)
        line = machine_line(stages, PEER_ROWS if options.cluster else ROWS)
        console.print(line, soft_wrap=True, highlight=False, markup=False)
        if options.keep:
            _wait_for_interrupt()
        return 0 if outputs_identical(stages) else 1


def _show_addresses(servers: Host | TwoHosts, console: Console) -> None:
    for host in servers.hosts if isinstance(servers, TwoHosts) else (servers,):
        for replica in host.replicas.values():
            console.print(f"replica {replica.name}: {replica.address}/v1", highlight=False)
        console.print(f"sidecar:   kvterrace status --address unix:{host.uds}", highlight=False, soft_wrap=True)
        console.print(f"dashboard: http://{host.dashboard}/", highlight=False)
    console.print("These servers go on running; Ctrl-C stops them.")


def _wait_for_interrupt() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            signal.pause()
