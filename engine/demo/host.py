"""The demo's servers on one host: a sidecar and the replicas on it."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .client import Replica
from .processes import Child, DemoError, free_port

COMMAND_S = 60.0


@dataclass(frozen=True, slots=True)
class DemoOptions:
    model: Path
    documents: tuple[Path, ...]
    short: bool = False  # one question instead of three
    keep: bool = False  # leave the servers running until Ctrl-C
    dram: str = "1GiB"
    nvme: str = "2GiB"
    cluster: str = ""  # Valkey's URL: two hosts with a replica each instead of one with two


class Host:
    """One sidecar and the replicas on it, in a scratch folder of their own. flags: more of `kvterrace serve`."""

    def __init__(
        self, options: DemoOptions, scratch: Path, replicas: Sequence[str] = ("A", "B"), flags: Sequence[str] = ()
    ) -> None:
        scratch.mkdir(exist_ok=True)
        self.uds = scratch / "kvterrace.sock"
        nvme = f"{scratch / 'nvme'}:{options.nvme}"
        serve = ["serve", "--uds", str(self.uds), "--dram", options.dram, "--nvme", nvme, *flags]
        self.dashboard = f"127.0.0.1:{free_port()}" if options.keep else ""
        if self.dashboard:
            serve += ["--http", self.dashboard]
        self.sidecar = Child("sidecar", serve, scratch / "sidecar.log")
        ports = {name: free_port() for name in replicas}
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
        step(f"sidecar is up; loading the model into {' and '.join(self.engines)}")
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
        """Empty the sidecar and the first replica's HBM."""
        next(iter(self.replicas.values())).clear_hbm()
        self._command("clear")

    def save_everything(self) -> None:
        """Wait until all that was computed is stored."""
        self._command("flush")

    def kill_sidecar(self) -> None:
        """Kill it once it has written what it had to, start it again, and wait until both replicas have come back by
        themselves. A's HBM is emptied, so that only the disk has the prefix."""
        self._command("flush")
        self.sidecar.kill()
        self.uds.unlink(missing_ok=True)
        self.sidecar.start()
        self.sidecar.wait_ready(self.uds.exists)
        self.sidecar.wait_ready(
            lambda: len(json.loads(self._command("status", "--json"))["sessions"]) == len(self.engines)
        )
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
