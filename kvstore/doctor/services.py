"""What runs: sidecar, Valkey, engines. Each is asked once, with a deadline; what they say of each other is compared."""

import asyncio
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, cast

from ...proto import BlockLayout, Namespace
from ...proto import kv_pb2 as pb
from ..cluster.address import parse_address
from ..cluster.valkey import make_client
from ..engine_http import EngineError, EngineHttp
from ..errors import KvterraceError, SessionRefused
from ..service import frames
from ..service.admin import CallRefused, fetch_status
from ..service.channel import Address, address_parts
from ..sidecar import SidecarClient
from ..status_view import format_bytes
from .finding import Finding, fail, ok, warn

CALL_S = 3.0
SKEW_WARN_S, SKEW_FAIL_S = 1.0, 30.0  # TTLs and membership are told in seconds
IDLE_ACQUIRES = 100  # from so many on, no hit at all is worth a word
SLOW_CALL_S = 0.25
MIN_VALKEY = (6, 2)
_AT = "run it on the sidecar's host, as its user, with its --arena-dir mounted"
_LAYOUT = BlockLayout(kv_heads=1, layers=1, planes=2, block_tokens=16, head_dim=8, dtype="float32")


async def look_at_sidecar(address: Address) -> tuple[list[Finding], pb.StatusReply | None]:
    """What it says of itself, and whether an engine could open a session."""
    what = f"sidecar {address}"
    began = time.time()
    try:
        reply = await fetch_status(address, check=False, timeout_s=CALL_S)
    except CallRefused as error:
        return [fail(what, str(error), "show who you are (--token-file, --tls-cert), or look at its log")], None
    except (KvterraceError, ValueError) as error:
        return [fail(what, str(error), "start it, or give its --address")], None
    took_s = time.time() - began
    found = [_answer(what, reply, took_s), *_skew(what, reply, began, took_s), *_health(reply), *_sharing(reply)]
    return [*found, await _session(what, address)], reply


def _answer(what: str, reply: pb.StatusReply, took_s: float) -> Finding:
    tiers = ", ".join(f"{tier.name} {format_bytes(tier.capacity_bytes)}" for tier in reply.tiers if tier.capacity_bytes)
    said = f"kvterrace {reply.package_version}, up {reply.uptime_s:,.0f} s, {tiers}, {len(reply.sessions)} sessions"
    if reply.package_version != frames.PACKAGE_VERSION:
        return warn(
            what, said, f"this program is {frames.PACKAGE_VERSION}: they understand each other, yet upgrade both"
        )
    if took_s > SLOW_CALL_S:
        return warn(what, f"{said}; it took {took_s * 1e3:.0f} ms to answer", "look whether its processor is shared")
    return ok(what, f"{said}; it answers in {took_s * 1e3:.1f} ms")


def _skew(what: str, reply: pb.StatusReply, began: float, took_s: float) -> Iterator[Finding]:
    if reply.time_s:  # an older one does not say
        yield clock_skew(f"clock of {what}", reply.time_s - (began + took_s / 2), took_s / 2)


def clock_skew(what: str, skew_s: float, error_s: float) -> Finding:
    """skew_s: theirs less ours, within error_s."""
    said = f"{skew_s:+.3f} s against this machine's (+-{error_s:.3f})"
    beyond = abs(skew_s) - error_s
    if beyond > SKEW_FAIL_S:
        return fail(what, said, "run NTP or chrony on both")
    return warn(what, said, "run NTP or chrony on both") if beyond > SKEW_WARN_S else ok(what, said)


def _health(reply: pb.StatusReply) -> Iterator[Finding]:
    for tier in reply.tiers:
        for device in tier.devices:
            if device.state != "ok":
                yield fail(
                    f"nvme {device.path} state", device.state, "look at dmesg and the disk; others go on without it"
                )
            elif not device.direct:
                yield warn(
                    f"nvme {device.path} state", "goes through the page cache", "choose a file system with O_DIRECT"
                )
    counters = reply.counters
    if counters.checksum_failures:
        said = f"{counters.checksum_failures:,} blocks failed their checksum since the start, and were dropped"
        do = "each `kvterrace verify` adds one; else test the machine's memory, and look who else writes to the arena"
        yield warn("checksums", said, do)
    hits = sum(counters.hit_tokens.values())
    if counters.committed_blocks and counters.acquires >= IDLE_ACQUIRES and not hits:
        said = f"{counters.committed_blocks:,} blocks stored, {counters.acquires:,} requests, and no hit"
        yield warn(
            "hits", said, "see `kvterrace why REQUEST_ID` and `kvterrace lint`: prompts may begin with what changes"
        )
    if reply.HasField("drain"):
        yield warn("draining", "it hands its blocks over and takes nothing new", "ask another node")
    if reply.HasField("cluster"):
        yield from _cluster(reply.cluster)


def _cluster(said: pb.ClusterStatus) -> Iterator[Finding]:
    what = f"cluster {said.name}"
    if not said.connected:
        yield fail(what, f"Valkey does not answer: {said.last_error}", "nodes serve what they have; mend Valkey")
    elif not said.joined:
        yield warn(what, "this node has not joined", "wait a few seconds, and look at its log")
    else:
        yield ok(what, f"{len(said.members)} members, Valkey in {said.round_trip_s * 1e3:.1f} ms")
    versions = sorted({member.package_version for member in said.members})
    if len(versions) > 1:
        yield warn(
            f"{what} versions", ", ".join(versions), "finish the upgrade: members understand each other meanwhile"
        )
    for member in said.members:
        if member.state:
            yield warn(f"member {member.node}", member.state, "look whether its --advertise can be reached from here")


def _sharing(reply: pb.StatusReply) -> Iterator[Finding]:
    """Engines of one name that cannot share, since something of their identity differs."""
    spaces: dict[tuple[str, str], list[str]] = defaultdict(list)
    for space in reply.namespaces:
        if space.sessions and space.label:
            spaces[space.label, space.tenant].append(space.fingerprint.hex()[:16])
    for (label, _), prints in spaces.items():
        if len(prints) > 1:
            said = f"engines that serve {label} have {len(prints)} namespaces ({', '.join(prints)}) and share nothing"
            do = (
                "give them the same weights, adapter, dtype, layout and engine version; `kvterrace why` names the field"
            )
            yield warn(f"sharing of {label}", said, do)


async def _session(what: str, address: Address) -> Finding:
    """A session of its own namespace, opened and ended; nothing is stored."""
    what = f"session with {what}"
    namespace = Namespace(os.urandom(32), _LAYOUT, producer="kvterrace doctor", label="doctor")
    plain, credentials = address_parts(address)
    client = SidecarClient(plain, namespace, client="kvterrace doctor", credentials=credentials)
    try:
        await client.start()
        if client.connected:
            return ok(what, f"opened, arena attached (wire version {frames.WIRE_VERSION}, block keys by sha256)")
        refused = client.refused
        return fail(
            what, str(refused) if refused else "none: is the arena on this host, and readable by this user?", _AT
        )
    except SessionRefused as refused:
        return fail(what, str(refused), "mend the field it names: engines are refused as well")
    finally:
        await client.close()


async def look_at_valkey(url: str) -> list[Finding]:
    """Reached, which version, its clock. The address is the configuration's, which has parsed it."""
    address = parse_address(url)
    what, client = f"valkey {address.text}", make_client(address, CALL_S)
    try:
        async with asyncio.timeout(CALL_S):
            info = await client.execute_command("INFO", "server")
            began = time.time()
            now = await client.execute_command("TIME")
            took_s = time.time() - began
    except Exception as error:  # noqa: BLE001  # redis-py raises of many kinds; each is a finding
        said = "no answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        return [fail(what, said[:300], "start it, or mend --cluster: address, password, TLS")]
    finally:
        with contextlib.suppress(Exception):
            await client.aclose()
    return [
        _version(what, info, took_s),
        clock_skew(f"clock of {what}", _time_of(now) - (began + took_s / 2), took_s / 2),
    ]


def _version(what: str, info: object, took_s: float) -> Finding:
    facts = cast("dict[str, Any]", info) if isinstance(info, dict) else {}
    if facts and all(isinstance(each, dict) for each in facts.values()):  # of a cluster: by node
        facts = cast("dict[str, Any]", next(iter(facts.values())))
    version = str(facts.get("valkey_version") or facts.get("redis_version") or "")
    name = "Valkey" if facts.get("valkey_version") else "Redis"
    said = f"{name} {version or 'of unknown version'}, round trip {took_s * 1e3:.1f} ms"
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if parts and parts < MIN_VALKEY:
        return warn(what, said, "use 7.2 or later; what is tested is Valkey 9")
    return ok(what, said)


def _time_of(answer: object) -> float:
    """Seconds; redis-py has made a tuple of them, or left the two texts."""
    if isinstance(answer, dict):  # of a cluster: by node
        answer = next(iter(cast("dict[str, object]", answer).values()))
    seconds, micros = cast("Sequence[Any]", answer)
    return int(seconds) + int(micros) / 1e6


def look_at_engine(engine: EngineHttp, sidecar: pb.StatusReply | None) -> Iterator[Finding]:
    """Any OpenAI-compatible one; of kvterrace's own its /status.json, too."""
    what = f"engine {engine}"
    try:
        models = cast("list[dict[str, object]]", engine.get("/v1/models").get("data") or [])
    except EngineError as error:
        yield fail(what, str(error), "start it, or give its address and --api-key-file")
        return
    names = ", ".join(str(each["id"]) for each in models if "id" in each) or "no model"
    try:
        status = engine.get("/status.json")
    except EngineError:
        yield ok(what, f"serves {names}; it is not kvterrace's own, so its cache is not looked at")
        return
    yield _phase(what, names, status)
    yield from _connector(what, status, sidecar)


def _phase(what: str, names: str, status: dict[str, Any]) -> Finding:
    said = f"kvterrace {status.get('version')}, serves {names}, {status.get('phase')}"
    if status.get("trouble"):
        return fail(what, f"{said}: {status['trouble']}", "look at its log")
    if status.get("version") != frames.PACKAGE_VERSION:
        return warn(what, said, f"this program is {frames.PACKAGE_VERSION}; upgrade both")
    return ok(what, said)


def _connector(what: str, status: dict[str, Any], sidecar: pb.StatusReply | None) -> Iterator[Finding]:
    connector = status.get("connector")
    what = f"cache of {what}"
    if not isinstance(connector, dict):
        yield warn(what, "it has none beyond its own memory", "start it with --kv-connector sidecar")
        return
    facts = cast("dict[str, Any]", connector)
    said = (
        f"{facts.get('kind')}, {facts.get('loaded_blocks', 0):,} blocks loaded, {facts.get('saved_blocks', 0):,} saved"
    )
    if not facts.get("connected"):
        do = "look at its log: the sidecar is away, refuses it, or its arena cannot be attached"
        yield fail(what, f"{said}, not connected", do)
    elif facts.get("corrupt_blocks"):
        do = "test the machine's memory, and look who else writes to the arena"
        yield warn(what, f"{said}, {facts['corrupt_blocks']:,} blocks failed their checksum", do)
    elif facts.get("kind") == "sidecar" and sidecar is not None and not sidecar.sessions:
        yield warn(what, f"{said}, but not of this sidecar: it has no session", "compare --kv-address with --address")
    else:
        yield ok(what, said)
