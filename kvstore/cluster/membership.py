"""Membership: who is in the cluster now. Each node keeps a lease in Valkey and a table of the others.

A beat each second renews the lease (6 s) and learns who came or went, in one round trip; the list itself is sent only
when its version has changed. The table stays as it was while Valkey is away: the peers are still there.
"""

import asyncio
import json
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from ..errors import ConfigError
from ..options import NAME
from .stats import ClusterCounters
from .valkey import Script, Unavailable, Valkey

LEASE_S = 6.0
BEAT_S = 1.0
MAX_MEMBERS = 4096
MAX_MEMBER_BYTES = 2048
MAX_ADDRESS_CHARS = 256

# The key of a node is the truth, the sorted set (by end of the lease) tells who may have one.
_BEAT = Script("""
local key, nodes, versions = KEYS[1], KEYS[2], KEYS[3]
local node, epoch, text, lease, known = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local prefix, most = ARGV[6], tonumber(ARGV[7])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function text_of(name)  -- false when there is none, or something else
  local value = redis.pcall('GET', name)
  return type(value) == 'string' and value
end
if redis.call('TYPE', nodes).ok ~= 'zset' then redis.call('DEL', nodes) end
local old = text_of(key)
local left = redis.call('PTTL', key)
local state, changed = 'kept', old ~= text
if old and left > 0 and not string.find(old, '"epoch":"' .. epoch .. '"', 1, true) then
  state, changed = 'taken', false
else
  if not old then state = 'new' end
  redis.call('SET', key, text, 'PX', lease)
  redis.call('ZADD', nodes, now + lease, node)
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', nodes, '-inf', now, 'LIMIT', 0, 256)) do
  redis.call('ZREM', nodes, gone)
  changed = true
end
local bumped = text_of(versions) and (not changed or redis.pcall('INCR', versions))
if not bumped or type(bumped) == 'table' then  -- a new one is not one that somebody knows from before
  redis.call('SET', versions, string.format('%d%06d', time[1], time[2]))
end
local version = redis.call('GET', versions)
local info = redis.pcall('INFO', 'server')  -- which process of Valkey this is; "" when nobody may know
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
local answer = {state, left, version, run}
if version ~= known then
  for _, each in ipairs(redis.call('ZRANGE', nodes, 0, most - 1)) do
    local member = text_of(prefix .. each)
    if member then
      answer[#answer + 1] = each
      answer[#answer + 1] = member
    end
  end
end
return answer
""")

_LEAVE = Script("""
local old = redis.call('GET', KEYS[1])
if old and string.find(old, '"epoch":"' .. ARGV[2] .. '"', 1, true) then
  redis.call('DEL', KEYS[1])
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('INCR', KEYS[3])
end
return {}
""")


class NodeTaken(ConfigError):
    """Another live process is this node."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node. epoch: 64 random bits of its process; grpc, bulk: HOST:PORT, "" = not offered; draining: it takes nothing
    new and will leave."""

    node: str
    epoch: int
    grpc: str
    bulk: str = ""
    wire_version: int = 1
    package_version: str = ""
    draining: bool = False

    @property
    def epoch_hex(self) -> str:
        return f"{self.epoch:016x}"

    def to_json(self) -> str:
        return json.dumps(asdict(self) | {"epoch": self.epoch_hex}, separators=(",", ":"))


def new_epoch() -> int:
    """For a process that starts; never 0."""
    return secrets.randbits(64) or 1


def parse_member(data: object) -> Member | None:
    """None: nonsense. Fields that are not known are a later version's."""
    if not isinstance(data, bytes) or len(data) > MAX_MEMBER_BYTES:
        return None
    try:
        loaded = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(loaded, dict):
        return None
    fields = cast("dict[str, Any]", loaded)
    node, epoch = fields.get("node"), fields.get("epoch")
    texts = [fields.get(name, "") for name in ("grpc", "bulk", "package_version")]
    wire, draining = fields.get("wire_version", 1), fields.get("draining", False)
    if not (isinstance(node, str) and NAME.fullmatch(node)):
        return None
    if not (isinstance(epoch, str) and re.fullmatch(r"[0-9a-f]{16}", epoch)):
        return None
    if not all(isinstance(text, str) and len(text) <= MAX_ADDRESS_CHARS and text.isprintable() for text in texts):
        return None
    if type(wire) is not int or not 0 <= wire < 2**31 or type(draining) is not bool:
        return None
    grpc, bulk, package = texts
    return Member(node, int(epoch, 16), grpc, bulk, wire, package, draining)


class Membership:
    """member: this node. `beat` is called each BEAT_S by its owner."""

    def __init__(
        self, valkey: Valkey, cluster: str, member: Member, counters: ClusterCounters, *, lease_s: float = LEASE_S
    ) -> None:
        self._valkey = valkey
        self._member = member
        self._counters = counters
        self._lease_s = lease_s
        self._base = f"kvterrace:{{{cluster}}}:"
        self._version = b""
        self._table: dict[str, Member] = {}
        self._watchers: list[Callable[[Sequence[Member]], None]] = []
        self._left_ms = 0
        self._run = b""  # of the process of Valkey
        self.joined = False

    @property
    def member(self) -> Member:
        """This node."""
        return self._member

    def members(self) -> list[Member]:
        """All that are there, as last known, this one included when it has joined."""
        return list(self._table.values())

    def others(self) -> list[Member]:
        """All but this node."""
        return [member for member in self._table.values() if member.node != self._member.node]

    def get(self, node: str) -> Member | None:
        return self._table.get(node)

    def watch(self, watcher: Callable[[Sequence[Member]], None]) -> Callable[[], None]:
        """It is told of all members whenever somebody came, went or changed. What this returns ends it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def set_draining(self, draining: bool) -> None:
        """The others learn of it by the next beats."""
        self._member = replace(self._member, draining=draining)

    async def join(self) -> str:
        """The first beat, with its answer. A process of this node that has crashed is waited for until its lease is
        over; one that renews it is alive: NodeTaken. Unavailable."""
        why = await self.beat()
        until = asyncio.get_running_loop().time() + self._lease_s + 2 * BEAT_S
        while not self.joined:
            left_ms = self._left_ms
            await asyncio.sleep(min(0.25, self._lease_s / 10))
            why = await self.beat()
            if not self.joined and (self._left_ms > left_ms or asyncio.get_running_loop().time() > until):
                raise NodeTaken(
                    f"another live process is node {self._member.node!r} of this cluster; give each node its own name"
                )
        return why

    async def beat(self) -> str:
        """Renew the lease and refresh the table. Why everything has to be announced again, "" = it need not: "joined"
        (Valkey did not know this process: it is new, or Valkey has lost what it had, or the lease was over), "returned"
        (it is another process of Valkey, which may have lost some). Unavailable."""
        prefix = f"{self._base}node:"
        keys = [prefix + self._member.node, self._base + "nodes", self._base + "version"]
        args = (
            self._member.node,
            self._member.epoch_hex,
            self._member.to_json(),
            int(self._lease_s * 1e3),
            self._version,
            prefix,
            MAX_MEMBERS,
        )
        was_up, was_in = self._valkey.up, self.joined
        answer = await self._valkey.probe(_BEAT, keys, args)
        state, left_ms, version, run = answer[:4] if len(answer) >= 4 else (None, None, None, None)
        if not (isinstance(state, bytes) and isinstance(left_ms, int) and isinstance(version, bytes)):
            self._counters.ignored["answer"] += 1
            return ""
        self.joined = state != b"taken"
        another = run != self._run if run else not was_up
        self._run = run
        self._left_ms = left_ms
        if version != self._version:
            self._version = version
            self._take(answer[4:])
        if not self.joined:
            return ""
        return "joined" if state == b"new" or not was_in else "returned" if another else ""

    async def leave(self) -> None:
        """Withdraw at once, if Valkey is there."""
        self.joined = False
        keys = [f"{self._base}node:{self._member.node}", self._base + "nodes", self._base + "version"]
        try:
            await self._valkey.call(_LEAVE, keys, (self._member.node, self._member.epoch_hex))
        except Unavailable:
            return  # the lease ends by itself

    def _take(self, rows: Sequence[object]) -> None:
        table: dict[str, Member] = {}
        for name, data in zip(rows[::2], rows[1::2], strict=False):
            member = parse_member(data)
            if member is None or member.node.encode() != name:
                self._counters.ignored["member"] += 1
            else:
                table[member.node] = member
        if table != self._table:
            self._table = table
            for watcher in list(self._watchers):
                watcher(self.members())
