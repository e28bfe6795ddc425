"""What several benchmarks need: the demo model, a sidecar process, an engine that one waits for."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kvterrace.connector import Model, Place, make_connector
from kvterrace.engine.config import EngineConfig
from kvterrace.engine.loop import EngineLoop
from kvterrace.engine.model import LoadedModel, load_model
from kvterrace.engine.request import Output, Request, SamplingParams

DEFAULT_MODEL = Path(__file__).parents[1] / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
WAIT_S = 120.0


def demo_model() -> LoadedModel:
    """The demo model, or the one that KVTERRACE_MODEL names."""
    return load_model(Path(os.environ.get("KVTERRACE_MODEL", DEFAULT_MODEL)))


@contextmanager
def sidecar(dram: str) -> Iterator[str]:
    """A running `kvterrace serve` on a Unix socket; yields its address."""
    with tempfile.TemporaryDirectory(prefix="kvterrace-bench-") as folder:
        socket = Path(folder) / "kv.sock"
        command = [sys.executable, "-m", "kvterrace.kvstore", "serve", "--uds", str(socket), "--dram", dram]
        process = subprocess.Popen([*command, "--log-level", "warning"], stdout=subprocess.DEVNULL)
        try:
            end = time.monotonic() + WAIT_S
            while not socket.exists():
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"the sidecar did not start (exit code {process.poll()})")
                time.sleep(0.02)
            yield f"unix:{socket}"
        finally:
            process.terminate()
            process.wait(WAIT_S)


class Engine:
    """An engine loop in this process whose caller waits for answers. Use as a context manager."""

    def __init__(self, loaded: LoadedModel, kind: str, address: str = "", **config: object) -> None:
        options: dict[str, object] = {"model": "bench", "kv_connector": kind, "kv_pool_bytes": 1 << 30} | config
        if address:
            options["kv_address"] = address
        place = Place(address=address) if address else Place()
        factory = None
        if kind != "none":
            model = Model(loaded.digest)
            factory = lambda pool, wake: make_connector(kind, pool, wake, model=model, place=place)  # noqa: E731
        self.loop = EngineLoop(loaded, EngineConfig(**options), factory)
        self._number = 0

    def __enter__(self) -> "Engine":
        self.loop.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

    def settle(self) -> None:
        """Wait until what the engine saves in the background is saved, so that it does not burden who runs next."""
        end = time.monotonic() + WAIT_S
        while self.loop.connector is not None and self.loop.connector.status().save_bytes_in_flight:
            if time.monotonic() > end:
                raise RuntimeError("saves did not end")
            time.sleep(0.01)

    def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> tuple[float, float, list[Output]]:
        """All prompts at once, greedily, to max_tokens each; seconds to the first token of any, to the end of all, and
        the last output of each."""
        first, done, ends = [], threading.Event(), []
        began = time.perf_counter()

        def on_output(output: Output) -> None:
            if output.token_ids and not first:
                first.append(time.perf_counter() - began)
            if output.finish_reason:
                ends.append(output)
                if len(ends) == len(prompts):
                    done.set()

        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        for ids in prompts:
            self._number += 1
            self.loop.submit(Request(f"bench-{self._number}", ids, params), on_output)
        if not done.wait(WAIT_S) or any(output.finish_reason != "length" for output in ends):
            raise RuntimeError(f"not all requests ended well: {[output.finish_reason for output in ends]}")
        return first[0], time.perf_counter() - began, ends
