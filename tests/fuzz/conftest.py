"""What all fuzz targets share: for how long they run, and how a failure replays.

KVTERRACE_FUZZ_S: seconds of each target (5). KVTERRACE_FUZZ_SEED: of the first batch of cases (0); a failure names the
seed of its own.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.strategies import SearchStrategy

BATCH = 50


@pytest.fixture
def fuzz_seconds() -> float:
    return float(os.environ.get("KVTERRACE_FUZZ_S", "5"))


@pytest.fixture
def fuzz(fuzz_seconds: float) -> Iterator[Callable[..., int]]:
    """Call it with a check and a strategy of what it must survive: how many cases there were. One batch at least, then
    until its share of the time is up."""

    def run(check: Callable[[object], None], cases: SearchStrategy, *, share: float = 1.0) -> int:
        logging.disable(logging.WARNING)  # a line for each case would be all that there is to read
        seed, end = int(os.environ.get("KVTERRACE_FUZZ_SEED", "0")), time.monotonic() + share * fuzz_seconds
        few = settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        count = 0

        def once(case: object) -> None:
            nonlocal count
            count += 1
            check(case)

        while not count or time.monotonic() < end:
            try:
                hypothesis.seed(seed)(few(hypothesis.given(cases)(once)))()
            except BaseException as trouble:
                trouble.add_note(f"replay: KVTERRACE_FUZZ_SEED={seed}")
                raise
            seed += 1
        return count

    yield run
    logging.disable(logging.NOTSET)


@pytest.fixture
def runner():
    """A loop that lives as long as the test, for what is served within it."""
    with asyncio.Runner() as made:
        yield made
