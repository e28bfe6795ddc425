"""ValkeyObjects: objects in Valkey or Redis, whole values under names, bounded by a cap and a time to live.

    kvterrace-<version>:{s<shard>}:<name>   the object
    kvterrace-<version>:{s<shard>}:uses     a sorted set: "<name>:<bytes>" by last use
    kvterrace-<version>:{s<shard>}:bytes    what these take together

Scripts keep the three together, so the cap holds for all nodes that use the store, at every moment: what was not used
for longest leaves when something is written. A single server or a sentinel's has one shard; a cluster has SHARDS of
them, so that its nodes share the load, each with its part of the cap.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from ...cluster.valkey import Script, Unavailable, Valkey
from ..base import Usage
from .envelope import FORMAT
from .objects import Found, Name, Trouble

SHARDS = 16
TTL_S = 7 * 24 * 3600  # since the last use
OVERHEAD_BYTES = 512  # of a name, its entry and the value's own
CLEAR_AT_ONCE = 512  # entries looked at by one call: Valkey does nothing else meanwhile

_TOUCH = Script("""
local size = redis.pcall('STRLEN', KEYS[1])
if type(size) == 'table' or size == 0 then return {} end
if redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1] .. ':' .. size) == 1 then
  redis.call('INCRBY', KEYS[3], size + ARGV[4])
end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return {size}
""")

_WRITE = Script("""
local data, uses, bytes = KEYS[1], KEYS[2], KEYS[3]
local name, value, used_at, ttl, prefix = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[7]
local cap, overhead = tonumber(ARGV[5]), tonumber(ARGV[6])
local used, gone, size = tonumber(redis.call('GET', bytes) or '0'), 0, #value + overhead
local old = redis.pcall('STRLEN', data)
if type(old) == 'table' then old = 0 end  -- not a string: not ours
redis.call('SET', data, value, 'EX', ttl)  -- the first to write: after one that did, no lack of memory would be said
if redis.call('ZREM', uses, name .. ':' .. old) == 1 then used = math.max(used - old - overhead, 0) end
while used + size > cap do
  local last = redis.call('ZPOPMIN', uses)
  if not last[1] then used = 0 break end
  local at = string.find(last[1], ':', 1, true)
  redis.call('UNLINK', prefix .. string.sub(last[1], 1, at - 1))
  used = math.max(used - tonumber(string.sub(last[1], at + 1)) - overhead, 0)
  gone = gone + 1
end
redis.call('ZADD', uses, used_at, name .. ':' .. #value)
redis.call('SET', bytes, used + size)
return {used + size, redis.call('ZCARD', uses), gone}
""")

_READ = Script("""
local size = redis.pcall('STRLEN', KEYS[1])
if type(size) == 'table' then return {0, ''} end
if size == 0 then return {} end
redis.pcall('ZADD', KEYS[2], 'XX', ARGV[3], ARGV[2] .. ':' .. size)  -- without memory left it says no
redis.call('EXPIRE', KEYS[1], ARGV[4])
return {size, redis.call('GETRANGE', KEYS[1], 0, ARGV[1] - 1)}
""")

_EXISTS = Script("""
local found = {}
for at = 1, #ARGV do found[at] = redis.call('EXISTS', KEYS[1] .. ARGV[at]) end
return found
""")

_REMOVE = Script("""
local size = redis.pcall('STRLEN', KEYS[1])
if type(size) == 'table' then size = 0 end
local there = redis.call('UNLINK', KEYS[1])
if redis.call('ZREM', KEYS[2], ARGV[1] .. ':' .. size) == 1 then redis.call('DECRBY', KEYS[3], size + ARGV[2]) end
return {there, tonumber(redis.call('GET', KEYS[3]) or '0'), redis.call('ZCARD', KEYS[2])}
""")

_CLEAR = Script("""
local uses, bytes, prefix, space, first, most, overhead = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local kept, gone = 0, 0
for _, entry in ipairs(redis.call('ZRANGE', uses, first, first + most - 1)) do
  if string.sub(entry, 1, #space) == space then
    local at = string.find(entry, ':', 1, true)
    redis.call('UNLINK', prefix .. string.sub(entry, 1, at - 1))
    redis.call('ZREM', uses, entry)
    redis.call('DECRBY', bytes, tonumber(string.sub(entry, at + 1)) + overhead)
    gone = gone + 1
  else kept = kept + 1 end
end
return {kept, gone, tonumber(redis.call('GET', bytes) or '0'), redis.call('ZCARD', uses)}
""")

_COUNT = Script("return {tonumber(redis.call('GET', KEYS[1]) or '0'), redis.call('ZCARD', KEYS[2])}")

_REASONS = {"deadline": "deadline", "denied": "denied", "unreachable": "unreachable", "down": "unreachable"}


@dataclass(frozen=True, slots=True)
class _Shard:
    """Names of the keys of one shard."""

    prefix: str
    uses: str
    bytes: str


class ValkeyObjects:
    """capacity_bytes: hard cap, of all nodes that use the store together. ttl_s: since the last use."""

    width = 4096  # questions of one prompt: they cost one round trip

    def __init__(
        self,
        url: str,
        capacity_bytes: int,
        *,
        timeout_s: float,
        ttl_s: int = TTL_S,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._valkey = Valkey(url, timeout_s=timeout_s, clock=clock)
        count = SHARDS if self._valkey.address.kind == "cluster" else 1
        prefixes = [f"{FORMAT}:{{s{number}}}:" for number in range(count)]
        self._shards = [_Shard(prefix, prefix + "uses", prefix + "bytes") for prefix in prefixes]
        self._taken = [(0, 0)] * count  # bytes and blocks of each, as it last said
        self._capacity_bytes = capacity_bytes
        self._ttl_s = ttl_s
        self._wall = wall
        self.text = self._valkey.address.text
        self.evicted = 0

    async def read(self, name: Name, head: memoryview, payload: memoryview, *, by: float) -> Found | None:
        shard, whole = self._shards[self._number(name)], len(head) + len(payload)
        data, args = shard.prefix + name.text, (whole, name.text, self._used_at(name), self._ttl_s)
        answer = await self._ask(_READ, [data, shard.uses], args, by)
        if not answer:
            return None
        size, value = answer[0], answer[1]
        if not isinstance(size, int) or not isinstance(value, bytes) or len(value) > whole:
            raise Trouble("io", f"{self.text} answered nonsense")
        head[: len(value)] = value[: len(head)]
        payload[: max(len(value) - len(head), 0)] = value[len(head) :]
        return Found(size, xxhash.xxh3_64_intdigest(payload))

    async def write(
        self, name: Name, head: bytes, payload: memoryview, checksum: int, *, replace: bool, by: float
    ) -> bool:
        if xxhash.xxh3_64_intdigest(payload) != checksum:
            raise Trouble("corrupt", "payload and checksum do not fit")
        number = self._number(name)
        shard, cap = self._shards[number], self._capacity_bytes // len(self._shards)
        size = len(head) + len(payload)
        if size + OVERHEAD_BYTES > cap:
            raise Trouble("too_large", f"a block is larger than a shard's cap of {cap}")
        keys, use = [shard.prefix + name.text, shard.uses, shard.bytes], (self._used_at(name), self._ttl_s)
        if not replace:  # what is there is not sent again
            there = await self._ask(_TOUCH, keys, (name.text, *use, OVERHEAD_BYTES), by)
            if there == [size]:
                return False
        args = (name.text, b"".join((head, payload)), *use, cap, OVERHEAD_BYTES, shard.prefix)
        answer = await self._ask(_WRITE, keys, args, by)
        self._note(number, answer[0], answer[1])
        self.evicted += int(answer[2])
        return True

    async def exists(self, names: Sequence[Name], *, by: float) -> list[bool]:
        groups: dict[int, list[int]] = {}
        for at, name in enumerate(names):
            groups.setdefault(self._number(name), []).append(at)
        asked = [
            self._ask(_EXISTS, [self._shards[number].prefix], [names[at].text for at in group], by)
            for number, group in groups.items()
        ]
        found = [False] * len(names)
        for group, answer in zip(groups.values(), await asyncio.gather(*asked), strict=True):
            for at, there in zip(group, answer, strict=True):
                found[at] = there == 1
        return found

    async def remove(self, name: Name, *, by: float) -> bool:
        number = self._number(name)
        shard = self._shards[number]
        keys = [shard.prefix + name.text, shard.uses, shard.bytes]
        there, used, count = await self._ask(_REMOVE, keys, (name.text, OVERHEAD_BYTES), by)
        self._note(number, used, count)
        return there == 1

    async def clear(self, fingerprint: bytes, *, by: float) -> int:
        cleared = 0
        for number, shard in enumerate(self._shards):
            first, looked = 0, 1
            while looked:
                args = (shard.prefix, fingerprint.hex() + "/", first, CLEAR_AT_ONCE, OVERHEAD_BYTES)
                kept, gone, used, count = await self._ask(_CLEAR, [shard.uses, shard.bytes], args, by)
                self._note(number, used, count)
                cleared += gone
                first, looked = first + kept, kept + gone
        return cleared

    async def count(self, *, by: float) -> None:
        for number, shard in enumerate(self._shards):
            used, count = await self._ask(_COUNT, [shard.bytes, shard.uses], (), by)
            self._note(number, used, count)

    def usage(self) -> Usage:
        used = sum(size for size, _ in self._taken)
        return Usage(self._capacity_bytes, used, sum(count for _, count in self._taken), used)

    async def close(self) -> None:
        await self._valkey.close()

    def _number(self, name: Name) -> int:
        """Of its shard."""
        return name.key[0] % len(self._shards)

    def _used_at(self, name: Name) -> float:
        return self._wall() - name.depth_s

    def _note(self, number: int, used: int, count: int) -> None:
        self._taken[number] = (int(used), int(count))

    async def _ask(self, script: Script, keys: Sequence[str], args: Sequence[Any], by: float) -> list[Any]:
        loop, first = asyncio.get_running_loop(), self._shards[0]
        try:
            if not self._valkey.up:
                async with asyncio.timeout_at(by):
                    await self._valkey.probe(_COUNT, [first.bytes, first.uses], ())
            return await self._valkey.call(script, keys, args, deadline_s=max(by - loop.time(), 0.0))
        except TimeoutError:
            raise Trouble("deadline", f"{self.text} did not answer in time") from None
        except Unavailable as error:
            if "maxmemory" in str(error):  # Valkey's own words; redis-py leaves the code out
                raise Trouble("no_space", str(error)) from None
            reason = _REASONS.get(error.reason, "io")
            raise Trouble(reason, str(error), sure=reason == "denied") from None
