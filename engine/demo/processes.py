"""The demo's child processes: started, watched until ready, stopped by pid, their logs kept for the error message."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

READY_S = 120.0
STOP_S = 15.0
LOG_TAIL_LINES = 20


class DemoError(Exception):
    """The demo cannot go on; the message says why, with the end of the log of the process concerned."""


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Child:
    """One `kvterrace …` process. Its stdout and stderr go to `log`."""

    def __init__(self, name: str, arguments: Sequence[str], log: Path) -> None:
        self.name, self._arguments, self._log = name, list(arguments), log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvterrace.kvstore", *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, "PYTHONSAFEPATH": "1"},
                start_new_session=True,  # a Ctrl-C in the terminal reaches the demo alone, which stops its children
            )

    @property
    def pid(self) -> int:
        """Of the running process; DemoError when it was not started."""
        if self._process is None:
            raise DemoError(f"{self.name} is not running")
        return self._process.pid

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float = READY_S) -> None:
        """Block until `ready()`; DemoError when the process ends first or the time is up."""
        deadline = time.monotonic() + timeout_s
        while not ready():
            if self._process is None or self._process.poll() is not None:
                raise DemoError(f"{self.name} ended before it was ready:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise DemoError(f"{self.name} was not ready within {timeout_s:.0f} s:\n{self.log_tail()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL after a grace. Does nothing when it is not running."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """SIGKILL: no farewell, nothing written."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def log_tail(self) -> str:
        if not self._log.exists():
            return "(no log)"
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
