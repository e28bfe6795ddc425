"""run_checks: every check that can be made of what was given, one after the other. What goes wrong is an outcome."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ..engine_http import EngineError, EngineHttp
from ..errors import KvterraceError
from ..service.admin import fetch_status
from ..service.channel import Address, Place
from ..service.frames import PACKAGE_VERSION, WIRE_VERSION
from . import engine_checks, isolation, store_checks
from .engine_probe import EngineProbe
from .report import Check, Failed, Outcome, Report, Skipped, machine_facts
from .scratch import CALL_S, Scratch

CHECK_S = 60.0  # of one check of the store
Tell = Callable[[Check], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to check. address: of a sidecar, None = none. tenants: the same one, shown other tokens. max_bytes: that the
    capacity check may write. recount: have the sidecar count everything again. clear_hbm: have engines forget
    their own copies first, so that the store's are what is compared."""

    address: Address | None
    engines: Sequence[EngineHttp] = ()
    model: str = ""
    tenants: Sequence[Place] = ()
    max_bytes: int = 64 << 20
    prompt_tokens: int = 200
    block_tokens: int = 16
    recount: bool = False
    clear_hbm: bool = False


def run_checks(plan: Plan, tell: Tell = lambda _: None) -> Report:
    """All of them; trouble is an outcome. tell: of each, as it ends."""
    facts = {"kvterrace": f"{PACKAGE_VERSION}, wire version {WIRE_VERSION}", **machine_facts()}
    checks: list[Check] = []

    def done(check: Check) -> None:
        checks.append(check)
        tell(check)

    if plan.address is not None:
        facts["sidecar"] = str(plan.address)
        asyncio.run(_check_store(plan, plan.address, facts, done))
    if plan.engines:
        _check_engines(plan, facts, done)
    return Report(checks, facts)


async def _check_store(plan: Plan, address: Address, facts: dict[str, str], done: Tell) -> None:
    try:
        reply = await fetch_status(address, check=False, timeout_s=CALL_S)
        facts["sidecar version"] = reply.package_version
        facts["sidecar tiers"] = ", ".join(f"{tier.name} {tier.capacity_bytes:,} bytes" for tier in reply.tiers)
    except (KvterraceError, ValueError) as error:
        facts["sidecar version"] = f"not told: {error}"
    async with Scratch(address) as scratch:
        for name, check in _store_checks(plan):
            done(await _one(f"store: {name}", partial(check, scratch)))
            await scratch.clean()  # so that each begins with nothing, and the next is not its victim
        done(await _one("store: cleaned up", partial(_cleaned, scratch)))


def _store_checks(plan: Plan) -> Iterator[tuple[str, Callable[[Scratch], Awaitable[str]]]]:
    yield "blocks written and read back", store_checks.round_trip
    yield "block boundaries", store_checks.boundaries
    yield "flipped bit", store_checks.corruption
    yield "torn write", store_checks.torn_write
    yield "lease and generation", store_checks.leases
    yield "namespaces apart", isolation.namespaces
    yield "tenants apart", lambda scratch: isolation.tenants(scratch, plan.tenants)
    yield "killed session", isolation.killed_session
    yield "capacity", lambda scratch: store_checks.capacity(scratch, plan.max_bytes)
    if plan.recount:
        yield "recount", store_checks.recount


async def _cleaned(scratch: Scratch) -> str:
    await scratch.clean()
    if scratch.left_blocks < 0:
        raise Skipped("this caller may not clear; what is left has the lowest priority and leaves within minutes")
    if scratch.left_blocks:
        raise Failed(f"{scratch.left_blocks} blocks of ours are still there")
    return "no block and no session of ours is left"


async def _one(name: str, check: Callable[[], Awaitable[str]]) -> Check:
    began = time.monotonic()
    try:
        async with asyncio.timeout(CHECK_S):
            outcome, said = Outcome.PASS, await check()
    except Skipped as why:
        outcome, said = Outcome.SKIP, str(why)
    except Failed as why:
        outcome, said = Outcome.FAIL, str(why)
    except TimeoutError:
        outcome, said = Outcome.FAIL, f"did not end within {CHECK_S:.0f} s"
    except (KvterraceError, ValueError, OSError) as error:
        outcome, said = Outcome.FAIL, str(error) or type(error).__name__
    return Check(name, outcome, said, time.monotonic() - began)


def _check_engines(plan: Plan, facts: dict[str, str], done: Tell) -> None:
    probes: list[EngineProbe] = []
    for engine in plan.engines:
        try:
            probe = EngineProbe(engine, plan.model, clears=plan.clear_hbm)
        except EngineError as error:
            done(Check(f"engine {engine}: answers", Outcome.FAIL, str(error), 0.0))
            continue
        facts[f"engine {engine}"] = f"{probe.model}, version {probe.version}, cache {probe.connector or 'not told'}"
        probes.append(probe)
    block = plan.block_tokens
    for probe in probes:
        done(
            _engine_one(
                f"engine {probe}: cold and warm", partial(engine_checks.cold_and_warm, probe, plan.prompt_tokens)
            )
        )
        done(_engine_one(f"engine {probe}: all blocks known", partial(engine_checks.full_hit, probe, block)))
        for shared in (3 * block - 1, 3 * block, 3 * block + 1):
            check = partial(engine_checks.partial, probe, block, shared)
            done(_engine_one(f"engine {probe}: {shared} tokens shared", check))
    if probes:
        check = partial(engine_checks.across, probes[0], probes[1:], plan.prompt_tokens)
        done(_engine_one("engines: one computes, others answer", check))


def _engine_one(name: str, check: Callable[[], str]) -> Check:
    began = time.monotonic()
    try:
        outcome, said = Outcome.PASS, check()
    except Skipped as why:
        outcome, said = Outcome.SKIP, str(why)
    except (Failed, EngineError) as why:
        outcome, said = Outcome.FAIL, str(why)
    return Check(name, outcome, said, time.monotonic() - began)
