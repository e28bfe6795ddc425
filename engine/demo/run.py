"""The demo's script: start a sidecar and two replicas, ask the same questions in six states of the cache.

The questions are first asked with nothing cached anywhere (between them everything is cleared), then again with the
prefix in A's HBM, in the sidecar's DRAM, from replica B, from A after a restart, and from A after the sidecar was
killed (SIGKILL) and started again, with the prefix on disk alone. Every answer must be the same text.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import metadata
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from .client import Answer, Replica
from .processes import Child, DemoError, free_port
from .report import Stage, machine_line, outputs_identical, show

QUESTIONS = (
    "In one sentence, what is this document about?",
    "Which two commands should a newcomer run first?",
    "Name one thing this project refuses to do, and why.",
)
DOCUMENT_CHARACTERS = 8_000  # about 2,000 tokens of English with some code
MAX_TOKENS = 24
COMMAND_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    model: Path
    documents: tuple[Path, ...]
    short: bool = False  # one question instead of three
    keep: bool = False  # leave the servers running until Ctrl-C
    dram: str = "1GiB"
    nvme: str = "2GiB"


def shared_prefix(documents: tuple[Path, ...]) -> str:
    """The head of the given texts (by default the README that the package carries). DemoError when missing or short."""
    missing = [str(path) for path in documents if not path.is_file()]
    if missing:
        raise DemoError(f"--document: no such file: {', '.join(missing)}")
    text = "\n\n".join(path.read_text() for path in documents) or str(metadata("kvterrace").json["description"])
    if len(text) < DOCUMENT_CHARACTERS:
        raise DemoError(f"--document: {len(text)} characters in all, at least {DOCUMENT_CHARACTERS} are needed")
    return text[:DOCUMENT_CHARACTERS]


class Cluster:
    """One sidecar and the replicas A and B on it, in a scratch folder of their own."""

    def __init__(self, options: DemoOptions, scratch: Path) -> None:
        self.uds = scratch / "kvterrace.sock"
        nvme = f"{scratch / 'nvme'}:{options.nvme}"
        serve = ["serve", "--uds", str(self.uds), "--dram", options.dram, "--nvme", nvme]
        self.sidecar = Child("sidecar", serve, scratch / "sidecar.log")
        ports = {"A": free_port(), "B": free_port()}
        self.engines = {
            name: Child(f"replica {name}", self._engine(options, port), scratch / f"replica-{name}.log")
            for name, port in ports.items()
        }
        self.replicas = {name: Replica(name, port) for name, port in ports.items()}

    def _engine(self, options: DemoOptions, port: int) -> list[str]:
        connector = ["--kv-connector", "sidecar", "--kv-address", f"unix:{self.uds}"]
        return ["engine", str(options.model), "--port", str(port), "--served-model-name", "demo", *connector]

    def start(self, step: Callable[[str], None]) -> None:
        self.sidecar.start()
        self.sidecar.wait_ready(self.uds.exists)
        step("sidecar is up; loading the model into A and B")
        for name in self.engines:
            self.engines[name].start()
        for name in self.engines:
            self.wait(name)
            step(f"replica {name} is ready")

    def wait(self, name: str) -> None:
        self.engines[name].wait_ready(self.replicas[name].ready)

    def restart(self, name: str) -> None:
        self.engines[name].stop()
        self.engines[name].start()
        self.wait(name)

    def clear_everything(self) -> None:
        """Empty A's HBM and the sidecar, so that the next question is cold."""
        self.replicas["A"].clear_hbm()
        self._command("clear")

    def kill_sidecar(self) -> None:
        """Kill it once it has written what it had to, start it again, and wait until both replicas have come back by
        themselves. A's HBM is emptied, so that only the disk has the prefix."""
        self._command("flush")
        self.sidecar.kill()
        self.uds.unlink(missing_ok=True)
        self.sidecar.start()
        self.sidecar.wait_ready(self.uds.exists)
        self.sidecar.wait_ready(lambda: len(json.loads(self._command("status", "--json"))["sessions"]) == 2)
        self.replicas["A"].clear_hbm()

    def _command(self, name: str, *flags: str) -> str:
        command = [sys.executable, "-m", "kvterrace.kvstore", name, *flags, "--address", f"unix:{self.uds}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        if done.returncode:
            raise DemoError(f"kvterrace {name} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.close()
        for child in (*self.engines.values(), self.sidecar):
            child.stop()


def measure(cluster: Cluster, document: str, questions: tuple[str, ...], step: Callable[[str], None]) -> list[Stage]:
    """Ask all questions in each of the six states. Returns the stages in the order of the table."""
    a, b = cluster.replicas["A"], cluster.replicas["B"]

    def ask(replica: Replica, before: Callable[[], None]) -> tuple[Answer, ...]:
        answers = []
        for question in questions:
            before()
            answers.append(replica.ask(document, question, MAX_TOKENS))
            step(f"{replica.name}: {answers[-1].ttft_s:.3f} s, {_found(answers[-1])}")
        return tuple(answers)

    stages = [Stage("cold on A", "nowhere", ask(a, cluster.clear_everything))]
    stages.append(Stage("warm on A", "A's HBM", ask(a, lambda: None)))
    stages.append(Stage("A, its HBM cleared", "sidecar DRAM", ask(a, a.clear_hbm)))
    stages.append(Stage("B, never saw it", "sidecar DRAM", ask(b, b.clear_hbm)))
    cluster.restart("A")
    step("replica A was restarted")
    stages.append(Stage("A, restarted", "sidecar DRAM", ask(a, a.clear_hbm)))
    stages.append(Stage("A, sidecar killed", "NVMe", ask(a, cluster.kill_sidecar)))
    return stages


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
        cluster = Cluster(options, scratch)
        stack.callback(cluster.close)
        with progress_steps(console, total=4 + 6 * len(questions)) as step:
            cluster.start(step)
            stages = measure(cluster, document, questions, step)
        show(console, stages)
        if not outputs_identical(stages):
            console.print("The outputs differ: a cached prefix changed what the model said.", style="bold red")
        if options.keep:
            _show_addresses(cluster, console)
        console.print(machine_line(stages), soft_wrap=True, highlight=False, markup=False)
        if options.keep:
            _wait_for_interrupt()
        return 0 if outputs_identical(stages) else 1


def _show_addresses(cluster: Cluster, console: Console) -> None:
    for replica in cluster.replicas.values():
        console.print(f"replica {replica.name}: {replica.address}/v1", highlight=False)
    console.print(f"sidecar:   kvterrace status --address unix:{cluster.uds}", highlight=False, soft_wrap=True)
    console.print("These servers go on running; Ctrl-C stops them.")


def _wait_for_interrupt() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            signal.pause()
