"""Plan: everything that one run was told, checked before anything is sent; measure() carries it out."""

import asyncio
import random
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from ..errors import KvterraceError
from ..sim.trace import Trace, read_trace
from .before import Before, read_before
from .calibrate import Calibration, calibrate
from .charts import check_charts
from .endpoint import PATHS, ApiKind, Asking, Endpoint, NobodyAnswers, base_url, open_endpoint
from .report import Report
from .run import Limits, Runner, until_stopped
from .scenarios import NAMES, SCENARIOS, TRACE, Arrivals, MadeUp, Recorded, Scaling, Shape
from .slo import Slo
from .words import Words

SUFFIXES = (".json", ".html")
DURATION_S = 60.0
WATCH_EVERY_S = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """rate: of the made-up scenarios. trace: of the trace scenario. settings: as told in the report."""

    url: str
    asking: Asking
    scenario: str
    seed: int
    rate: float
    shape: Shape
    scaling: Scaling
    limits: Limits
    slo: Slo
    trace: Trace | None
    settings: Mapping[str, object]
    before: Before | None = None

    @property
    def expected(self) -> float:
        """Seconds in which requests come; inf = not known."""
        if self.trace is not None:
            return min(self.limits.duration_s, self.trace.duration_s / self.scaling.speed)
        return self.limits.duration_s


def make_plan(given: Mapping[str, Any], out: Sequence[Path]) -> Plan:
    """given: the options of `kvterrace load` by name. ValueError or KvterraceError names the option that is wrong."""
    scenario = _scenario(given["scenario"], given["trace"])
    if given["api"] not in PATHS:
        raise ValueError(f"--api: {given['api']!r} is neither chat nor completions")
    if given["min_goodput"] is not None and not given["slo"]:
        raise ValueError("--min-goodput needs --slo: without an objective every request meets it")
    _check_out(out)
    seed = given["seed"] if given["seed"] is not None else random.SystemRandom().randrange(1 << 32)
    duration_s = given["duration"] or (float("inf") if scenario == TRACE else DURATION_S)
    return Plan(
        url=base_url(given["url"]),
        asking=Asking(cast(ApiKind, given["api"]), given["model"], ignore_eos=given["ignore_eos"]),
        scenario=scenario,
        seed=seed,
        rate=given["rate"],
        shape=_shape(given),
        scaling=Scaling(given["speed"], given["token_scale"]),
        limits=Limits(duration_s, given["requests"] or 0, given["alone"], given["concurrency"], given["timeout"]),
        slo=_slo(given["slo"]),
        trace=read_trace(given["trace"]) if given["trace"] is not None else None,
        settings=_shown(given, scenario, seed, duration_s),
        before=read_before(given["against"]) if given["against"] is not None else None,
    )


async def measure(
    plan: Plan,
    *,
    api_key: str = "",
    tls: ssl.SSLContext | None = None,
    stop: asyncio.Event,
    watch: Callable[[Runner], None] = lambda runner: None,
    clock: Callable[[], float] = time.perf_counter,
) -> Report:
    """Until it is done or `stop` is set. NobodyAnswers, or KvterraceError for what the user can mend.

    watch: called a few times a second.
    """
    started_at = datetime.now(UTC).astimezone().isoformat(" ", "seconds")
    async with open_endpoint(plan.url, plan.asking, api_key=api_key, tls=tls) as endpoint:
        run = _Run(plan, endpoint, clock)
        work = asyncio.create_task(run.go())
        watching = asyncio.create_task(_watch(run, watch))
        try:
            stopped = await until_stopped(work, stop)
        finally:
            work.cancel()
            watching.cancel()
            await asyncio.gather(work, watching, return_exceptions=True)
    if run.runner is None:
        raise NobodyAnswers("stopped before anything was measured")
    return Report(
        plan.url,
        endpoint.asking.model,
        plan.scenario,
        plan.settings,
        run.told,
        plan.slo,
        run.runner.phases,
        started_at,
        stopped,
        run.left_out,
        plan.before,
    )


class _Run:
    """From the first question to the last answer. runner: None until the endpoint has answered a plain request."""

    def __init__(self, plan: Plan, endpoint: Endpoint, clock: Callable[[], float]) -> None:
        self._plan, self._endpoint, self._clock = plan, endpoint, clock
        self._load: MadeUp | Recorded | None = None
        self.told = Calibration()
        self.runner: Runner | None = None

    @property
    def left_out(self) -> int:
        return self._load.too_long if isinstance(self._load, Recorded) else 0

    async def go(self) -> None:
        plan, endpoint = self._plan, self._endpoint
        await endpoint.find_model()
        timeout_s = plan.limits.timeout_s
        self.told = await calibrate(endpoint, Words(plan.seed), clock=self._clock, timeout_s=timeout_s)
        _check_length(plan, endpoint, self.told)
        words = Words(plan.seed, self.told.tokens_per_word)
        self._load = _source(plan, words, endpoint, self.told, "load")
        alone = _source(plan, words, endpoint, self.told, "alone")
        self.runner = Runner(endpoint, plan.limits, plan.slo, random.Random(plan.seed), self._clock)
        await self.runner.run(_arrivals(plan, alone), _arrivals(plan, self._load))


async def _watch(run: _Run, watch: Callable[[Runner], None]) -> None:
    while True:
        if run.runner is not None:
            watch(run.runner)
        await asyncio.sleep(WATCH_EVERY_S)


def _source(plan: Plan, words: Words, endpoint: Endpoint, told: Calibration, phase: str) -> MadeUp | Recorded:
    if plan.trace is not None:
        room = max(1, endpoint.max_model_len - told.template_tokens) if endpoint.max_model_len else 0
        return Recorded(plan.trace, words, Scaling(plan.scaling.speed, plan.scaling.tokens, room), phase)
    return MadeUp(plan.shape, words, plan.rate, random.Random(f"{plan.seed}/{phase}"), phase)


def _arrivals(plan: Plan, source: MadeUp | Recorded) -> Arrivals:
    if isinstance(source, Recorded):
        return source.arrivals()
    made: Iterator[Any] = SCENARIOS[plan.scenario](source)
    return made


def _check_length(plan: Plan, endpoint: Endpoint, told: Calibration) -> None:
    """Prompts that the model cannot take are better told of before."""
    if not endpoint.max_model_len or plan.trace is not None:
        return
    shape = plan.shape
    longest = shape.prompt_tokens + shape.output_tokens + told.template_tokens
    if longest > endpoint.max_model_len:
        raise KvterraceError(
            f"--prompt-tokens: {shape.prompt_tokens} and --output-tokens {shape.output_tokens} are more than the "
            f"{endpoint.max_model_len} tokens that {endpoint.asking.model} takes"
        )


def _scenario(scenario: str | None, trace: Path | None) -> str:
    if scenario is not None and scenario not in NAMES:
        raise ValueError(f"--scenario: there is no {scenario!r}; there are {', '.join(NAMES)}")
    if scenario == TRACE and trace is None:
        raise ValueError("--scenario trace needs --trace FILE")
    if trace is not None and scenario not in (None, TRACE):
        raise ValueError(f"--trace is for --scenario trace, not {scenario}")
    return TRACE if trace is not None else scenario or "steady"


def _shape(given: Mapping[str, Any]) -> Shape:
    lengths = given["prompt_tokens"], given["output_tokens"]
    return Shape(*lengths, given["shared"], given["groups"], given["turns"], given["think"])


def _slo(text: str) -> Slo:
    try:
        return Slo.parse(text)
    except ValueError as error:
        raise ValueError(f"--slo: {error}") from None


def _check_out(out: Sequence[Path]) -> None:
    """Before the measuring rather than after it."""
    for path in out:
        if path.suffix.lower() not in SUFFIXES:
            raise ValueError(f"--out: {path} must end in {' or '.join(SUFFIXES)}")
        if not path.absolute().parent.is_dir():
            raise ValueError(f"--out: there is no directory {path.absolute().parent}")
    if any(path.suffix.lower() == ".html" for path in out):
        check_charts()


MADE_UP_ONLY = ("rate", "prompt_tokens", "output_tokens", "shared", "groups")
CONVERSATION_ONLY = ("turns", "think")
TRACE_ONLY = ("speed", "token_scale")


def _shown(given: Mapping[str, Any], scenario: str, seed: int, duration_s: float) -> dict[str, object]:
    """What the report says was asked for: only what the scenario reads."""
    left_out = {"url", "model", "min_goodput", "scenario", "against"}
    left_out |= set(MADE_UP_ONLY) if scenario == TRACE else set(TRACE_ONLY)
    if scenario != "conversation":
        left_out |= set(CONVERSATION_ONLY)
    duration = duration_s if duration_s != float("inf") else None
    told = {**given, "seed": seed, "duration": duration, "trace": given["trace"].name if given["trace"] else None}
    return {name.replace("_", "-"): value for name, value in told.items() if name not in left_out}
