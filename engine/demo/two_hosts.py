"""The demo's servers as if on two hosts: a sidecar with one replica each, which find each other through Valkey."""

import secrets
import time
from collections.abc import Callable
from pathlib import Path

from .host import DemoOptions, Host
from .processes import free_port

ANNOUNCED_S = 0.5  # what a node has stored is known to others a few times sooner


class TwoHosts:
    """Host `one` with replica A, host `two` with replica B."""

    def __init__(self, options: DemoOptions, scratch: Path) -> None:
        shared = ["--cluster", options.cluster, "--cluster-name", f"demo-{secrets.token_hex(4)}"]
        one, two = (
            [*shared, "--node", f"host-{number}", "--listen", f"127.0.0.1:{free_port()}"] for number in ("1", "2")
        )
        self.one = Host(options, scratch / "1", ("A",), one)
        self.two = Host(options, scratch / "2", ("B",), two)
        self.hosts = (self.one, self.two)

    def start(self, step: Callable[[str], None]) -> None:
        for host in self.hosts:
            host.start(step)

    def clear_everything(self) -> None:
        """Empty both sidecars and A's HBM, so that the next question is cold."""
        self.two.clear_everything()
        self.one.clear_everything()
        time.sleep(ANNOUNCED_S)

    def close(self) -> None:
        for host in self.hosts:
            host.close()
