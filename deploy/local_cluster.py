"""Run some nodes of a cluster on loopback until Ctrl-C: `python deploy/local_cluster.py VALKEY_URL [NODES]`.

Each is a `kvterrace serve` with a socket, a small arena and ports of its own; their addresses are printed.
"""

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DRAM = "256MiB"
START_S = 30.0


def free_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start(url: str, name: str, folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """A node, and what to tell people about it."""
    socket_path, listen, http = folder / f"{name}.sock", f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    flags = ["--uds", str(socket_path), "--dram", DRAM, "--cluster", url, "--node", name, "--listen", listen]
    command = [sys.executable, "-m", "kvterrace.kvstore", "serve", *flags, "--http", http, "--log-level", "warning"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    end = time.monotonic() + START_S
    while not socket_path.exists():
        if process.poll() is not None or time.monotonic() > end:
            raise SystemExit(f"node {name} did not start")
        time.sleep(0.05)
    return process, f"{name}: engines on unix:{socket_path}, nodes on {listen}, http://{http}/status.json"


def main() -> int:
    if not 2 <= len(sys.argv) <= 3:
        print(__doc__, file=sys.stderr)
        return 2
    folder = Path(tempfile.mkdtemp(prefix="kvterrace-cluster-"))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        print(f"valkey: {sys.argv[1]}")
        for number in range(int(sys.argv[2]) if len(sys.argv) == 3 else 3):
            process, text = start(sys.argv[1], f"node-{number + 1}", folder)
            processes.append(process)
            print(text, flush=True)
        print("Ctrl-C stops them.", flush=True)
        return max(process.wait() for process in processes)
    except KeyboardInterrupt:
        return 0
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
