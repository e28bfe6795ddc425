"""The simulated cluster of one seed: nodes, engines, Valkey, what goes wrong, and what must hold all the same."""

import asyncio
import contextlib
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from kvterrace.kvstore import promoter
from kvterrace.kvstore.cluster import NodeTaken
from kvterrace.kvstore.peer import fetching
from kvterrace.proto import PAGE_BYTES

from .disk import Disk
from .engine import Engine, Prompts
from .faults import Faults
from .net import LATEST_S, Net, Weather
from .node import ENTRY_TTL_S, LEASE_S, SimNode
from .valkey_net import ValkeyHost
from .virtual import Life, Stuck, VirtualLoop

TROUBLE_S = 8.0  # of requests and faults
CALM_S = LATEST_S + ENTRY_TTL_S + LEASE_S + 2.0  # by when all agree, once nothing fails any more
CHECK_S = 1.5
LATE_LEAVE_S = 3.0
NAMES = ("a", "b", "c", "d")
LOOK_S = 0.2  # how often a dead node is noticed by whoever starts it again


@dataclass
class Outcome:
    """wrong: invariants that did not hold. digest: of all that happened."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    digest: str = ""
    requests: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Host:
    """A machine: what is there through all lives of its node. node: None while it is down."""

    def __init__(self, name: str, disk: Disk | None) -> None:
        self.name, self.disk = name, disk
        self.node: SimNode | None = None
        self.engine: Engine | None = None
        self.wanted = True
        self.life = 0


class World:
    """See the module."""

    def __init__(self, seed: int, loop: VirtualLoop) -> None:
        self.rng = random.Random(f"world {seed}")
        self.loop = loop
        self.net = Net(random.Random(f"net {seed}"))
        self.valkey = ValkeyHost(self.net, random.Random(f"valkey {seed}"))
        self.prompts = Prompts(self.rng)
        self.wrong: list[str] = []
        self.requests = 0
        self.until = TROUBLE_S
        self.hosts = {
            name: Host(name, Disk(random.Random(f"disk {seed} {name}"), 60) if self.rng.random() < 0.5 else None)
            for name in NAMES[: self.rng.randint(2, len(NAMES))]
        }

    async def run(self) -> None:
        """All of it. What went wrong is in `wrong`."""
        keepers = [asyncio.ensure_future(self._keep(host)) for host in self.hosts.values()]
        checker = asyncio.ensure_future(self._check())
        await Faults(self).run(self.until)
        self.net.note("calm")
        await asyncio.sleep(max(0.0, self.until - self.loop.time()))
        await self._quiet()
        await asyncio.sleep(CALM_S)
        for task in (*keepers, checker):
            task.cancel()
        for said in await asyncio.gather(*keepers, checker, return_exceptions=True):
            if isinstance(said, Exception):
                self.fault(f"the simulation itself: {said!r}")
        for host in self.hosts.values():
            await self._at_end(host)
        self._agree()
        for host in self.hosts.values():
            if host.node is not None:
                await host.node.stop()

    def fault(self, what: str) -> None:
        self.wrong.append(f"at {self.loop.time():.3f} s: {what}")
        self.net.note(f"wrong {what}")

    def crash(self, name: str, *, dark: bool) -> None:
        """kill -9, or the power; it comes back when `wanted` is set again."""
        host = self.hosts[name]
        host.wanted = False
        if dark:
            self.net.dark.add(name)
        if host.node is not None:
            self._collect(host)
            host.node.kill()
            host.node = None

    async def drain(self, name: str, deadline_s: float) -> None:
        """Ends when it has left, or crashed."""
        host = self.hosts[name]
        node = host.node
        if node is None:
            return
        host.wanted = False
        node.life.context.run(lambda: node.drain.begin(deadline_s, stay=False))
        leaving = asyncio.ensure_future(node.left.wait())
        await asyncio.wait({leaving}, timeout=deadline_s + LATE_LEAVE_S)
        if not leaving.done() and node.life.alive:
            self.fault(f"{node.life.name} has not left {LATE_LEAVE_S} s after its deadline of {deadline_s} s")
        leaving.cancel()
        if host.node is node:
            self._collect(host)
            host.node = None
            stopping = node.life.spawn(node.stop())
            await asyncio.wait({stopping}, timeout=LATE_LEAVE_S)
            node.kill()

    def revive(self, name: str, *, lost_disk: bool) -> None:
        host = self.hosts[name]
        self.net.dark.discard(name)
        self.net.change()
        if lost_disk and host.disk is not None:
            host.disk = Disk(random.Random(f"disk {name} {host.life}"), 60)
        host.wanted = True

    async def _keep(self, host: Host) -> None:
        """What systemd does: start it whenever it is not there and should be."""
        while True:
            if host.wanted and host.node is None:
                host.life += 1
                life = Life(f"{host.name}.{host.life}")
                host.node = await life.spawn(self._make(host, life))
            await asyncio.sleep(LOOK_S)

    async def _make(self, host: Host, life: Life) -> SimNode:
        rng = random.Random(f"{self.rng.random()} {host.name}")
        node = SimNode(self.loop, self.net, self.valkey, host.name, life, rng, host.disk)
        host.engine = Engine(node, rng, self.prompts)
        self.net.note(f"start {life.name}")
        life.spawn(host.engine.run(self.until))
        life.spawn(self._join(host, node))
        return node

    async def _join(self, host: Host, node: SimNode) -> None:
        try:
            await node.start()
            self.net.note(f"joined {node.life.name}")
        except NodeTaken:  # by its own past: a beat that came late
            self.net.note(f"taken {node.life.name}")
            if host.node is node:
                self._collect(host)
                node.kill()
                host.node = None

    def _collect(self, host: Host) -> None:
        if host.engine is not None:
            self.requests += host.engine.done
            self.wrong += host.engine.wrong
            host.engine = None

    async def _check(self) -> None:
        """Now and then, in the midst of it."""
        while self.loop.time() < self.until + 2 * CHECK_S:
            await asyncio.sleep(CHECK_S)
            for host in self.hosts.values():
                if host.node is not None:
                    self._recount(host.node)
                    self._late(host)

    def _recount(self, node: SimNode) -> None:
        try:
            node.store.check()
        except AssertionError as error:
            self.fault(f"{node.life.name}: {error or 'a count is wrong'}")

    def _late(self, host: Host) -> None:
        for until, what in host.engine.requests.values() if host.engine is not None else ():
            if self.loop.time() > until + CHECK_S:
                self.fault(f"a request hangs: {what}")

    async def _quiet(self) -> None:
        """Nothing fails any more, all hosts are up, no new request comes."""
        self.net.weather = Weather()
        self.net.slow.clear()
        for name in self.hosts:
            if not self.hosts[name].wanted:
                self.revive(name, lost_disk=False)

    async def _at_end(self, host: Host) -> None:
        """Everything was answered, everything given back."""
        node, engine = host.node, host.engine
        if node is None or engine is None:
            self.fault(f"{host.name} is not up")
            return
        if engine.requests:
            self.fault(f"requests were lost: {[what for _, what in engine.requests.values()]}")
        self._collect(host)
        engine.close()
        self._recount(node)
        left = {
            "bytes from peers in flight": node.peers.in_flight_bytes,
            "tickets outstanding": node.tickets.outstanding,
            "leased bytes": node.store.stats().tiers[0].leased_bytes,
            "changes not announced": node.cluster.status().backlog,
        }
        for what, count in left.items():
            if count:
                self.fault(f"{node.life.name}: {count} {what} at the end")

    def _agree(self) -> None:
        """The directory says of each node what it has, and all know who is there."""
        nodes = [host.node for host in self.hosts.values() if host.node is not None]
        members = {node.name: node.cluster.member for node in nodes}
        for node in nodes:
            seen = {member.node: member for member in node.cluster.members()}
            if seen != members:
                self.fault(f"{node.life.name} knows {sorted(seen)} with their epochs, not {sorted(members)}")
        believed = self._believed()
        epochs = {node.cluster.member.epoch_hex.encode(): node for node in nodes}
        for epoch, node in epochs.items():
            held = {(space, key) for space, keys in node.held().items() for key in keys}
            said = believed.get(epoch, set())
            if said != held:
                text = f"{len(held - said)} marks of {len(held)} are not known, {len(said - held)} are believed wrongly"
                self.fault(f"{node.life.name}: {text}")

    def _believed(self) -> dict[bytes, set[tuple[bytes, bytes]]]:
        """What an asker would believe, by epoch: (namespace, key)."""
        model, found = self.valkey.model, dict[bytes, set[tuple[bytes, bytes]]]()
        prefix = b"kvterrace:sim:mark:{"
        now = int(model._clock())
        for name, table in model.hashes(prefix).items():
            space, key = bytes.fromhex(name[len(prefix) : len(prefix) + 64].decode()), name[len(prefix) + 66 :]
            for value in table.values():
                if now - int(value[16:], 16) <= ENTRY_TTL_S:
                    found.setdefault(value[:16], set()).add((space, key))
        return found


def run_seed(seed: int, *, trace: Callable[[str], None] | None = None, trouble_s: float = TROUBLE_S) -> Outcome:
    """Simulate it. Whatever goes wrong, an exception of the harness too, is in the outcome."""
    loop = VirtualLoop(random.Random(f"loop {seed}"))
    outcome = Outcome(seed)
    asyncio.set_event_loop(loop)

    def trouble(_: Any, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), asyncio.CancelledError):
            outcome.wrong.append(f"{context['message']}: {context.get('exception')!r}")

    loop.set_exception_handler(trouble)

    async def main() -> None:
        world = World(seed, loop)
        world.until = trouble_s
        world.net.trace = trace
        try:
            await world.run()
        finally:
            outcome.wrong += world.wrong
            outcome.digest, outcome.requests = world.net.digest, world.requests
            outcome.counts = dict(world.net.counts)
            if world.valkey.model.unknown:
                outcome.wrong.append(f"the model of Valkey lacks {sorted(world.valkey.model.unknown)}")

    with _small():
        try:
            loop.run_until_complete(main())
        except Stuck as error:
            outcome.wrong.append(str(error))
        finally:
            _end(loop)
    return outcome


@contextlib.contextmanager
def _small() -> Generator[None]:
    """A few kilobytes are cut as megabytes are."""
    before = promoter.FLIGHT_BYTES, fetching.CHUNK_BYTES
    promoter.FLIGHT_BYTES, fetching.CHUNK_BYTES = 6 * PAGE_BYTES, 1500
    try:
        yield
    finally:
        promoter.FLIGHT_BYTES, fetching.CHUNK_BYTES = before


def _end(loop: VirtualLoop) -> None:
    """What dead processes left behind."""
    for _ in range(20):
        left = asyncio.all_tasks(loop)
        if not left:
            break
        for task in left:
            task.cancel()
        try:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        except Stuck:
            break
    asyncio.set_event_loop(None)
    loop.close()
