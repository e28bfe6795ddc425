"""Directory: which node has which marks, in Valkey. One round trip for a question, one for some hundred changes.

The entry of a mark is a hash: field = node; value = the epoch of its process (16 hex digits) and when it was announced
(8, of Valkey's clock in seconds). An entry leaves 15 minutes after the last announcement, and a node's field counts no
longer than that even when others keep the entry alive: a withdrawal that got lost misleads for so long at most.

Keys of one namespace share a hash tag, and the scripts build them from a prefix and one string of all the block keys:
a question about 8,192 blocks is 17 KB, and Valkey answers it by a search by position, because whoever has a mark has
those above it. What comes from Valkey is input: it is checked, and nonsense is counted and ignored.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .stats import ClusterCounters
from .valkey import TIMEOUT_S, Script, Valkey

ENTRY_TTL_S = 15 * 60
EPOCH_DIGITS = 16
MAX_NODE_BYTES = 128
MAX_FIELDS = 4096  # of an entry; a larger one is nobody's
MAX_FOUND = 8  # holders that a question answers with
CHUNK = 256  # marks of one call: Valkey does nothing else meanwhile, for a few milliseconds

_ANNOUNCE = Script("""
local node, epoch, ttl, size = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local adds, removes = ARGV[5], ARGV[6]
local now = tonumber(redis.call('TIME')[1])
local value = epoch .. string.format('%08x', now)
for at = 1, #adds, size do
  local key = KEYS[1] .. string.sub(adds, at, at + size - 1)
  local new = redis.pcall('HSET', key, node, value)
  if type(new) == 'table' then  -- not a hash: not ours
    redis.call('DEL', key)
    new = redis.call('HSET', key, node, value)
  end
  if new == 1 and redis.call('HLEN', key) > 64 then  -- forget who has not said it for long
    local flat = redis.call('HGETALL', key)
    for i = 1, #flat, 2 do
      local at_s = tonumber(string.sub(flat[i + 1], 17), 16)
      if not at_s or now - at_s > ttl then redis.call('HDEL', key, flat[i]) end
    end
  end
  redis.call('EXPIRE', key, ttl)
end
for at = 1, #removes, size do
  local key = KEYS[1] .. string.sub(removes, at, at + size - 1)
  local old = redis.pcall('HGET', key, node)
  if type(old) == 'string' and string.sub(old, 1, 16) == epoch then redis.call('HDEL', key, node) end
end
return {}
""")

# Binary search for the deepest mark that a live process has, then up a few from there until there are enough of them.
FIND_TEXT = """
local keys, size, epochs = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local ttl, enough, most = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local live = {}
for at = 1, #epochs, 16 do live[string.sub(epochs, at, at + 15)] = true end
local now = tonumber(redis.call('TIME')[1])
local bad, known = 0, {}
local function holders(i)
  if known[i] then return known[i] end
  local found = {}
  known[i] = found
  local key = KEYS[1] .. string.sub(keys, i * size + 1, (i + 1) * size)
  local fields = redis.pcall('HLEN', key)
  if type(fields) ~= 'number' or fields > most then bad = bad + 1 return found end
  if fields == 0 then return found end
  local flat = redis.call('HGETALL', key)
  for j = 1, #flat, 2 do
    local value = flat[j + 1]
    local at_s = #value == 24 and tonumber(string.sub(value, 17), 16)
    if not at_s or #flat[j] > 128 then bad = bad + 1
    elseif live[string.sub(value, 1, 16)] and now - at_s <= ttl then
      found[#found + 1] = {flat[j], string.sub(value, 1, 16)}
    end
  end
  return found
end
local low, high = -1, #keys / size  -- somebody has low, nobody has high
while high - low > 1 do
  local middle = math.floor((low + high) / 2)
  if #holders(middle) > 0 then low = middle else high = middle end
end
local deepest = low
local answer, seen, count, last = {0}, {}, 0, math.max(0, low - 7)
while low >= last and count < enough do
  for _, each in ipairs(holders(low)) do
    local who = each[2] .. each[1]
    if not seen[who] and count < enough then
      seen[who] = true
      count = count + 1
      answer[#answer + 1] = low
      answer[#answer + 1] = each[1]
      answer[#answer + 1] = each[2]
    end
  end
  low = low - 1
end
answer[1] = bad
return answer
"""
_FIND = Script(FIND_TEXT)


@dataclass(frozen=True, slots=True)
class Found:
    """That process of that node has the mark at `index` of those asked for, and so those above it."""

    index: int
    node: str
    epoch: int


class Directory:
    """cluster: its name, without braces."""

    def __init__(
        self, valkey: Valkey, cluster: str, counters: ClusterCounters, *, entry_ttl_s: int = ENTRY_TTL_S
    ) -> None:
        self._valkey = valkey
        self._cluster = cluster
        self._counters = counters
        self._entry_ttl_s = entry_ttl_s

    def prefix(self, fingerprint: bytes) -> str:
        """Of the keys of a namespace's entries; the block key follows, as it is."""
        return f"kvterrace:{self._cluster}:mark:{{{fingerprint.hex()}}}:"

    async def announce(
        self, node: str, epoch: int, fingerprint: bytes, adds: Sequence[bytes], removes: Sequence[bytes]
    ) -> None:
        """That process has the marks `adds` and no longer `removes`, all keys of one length. May be said again. A round
        trip for each CHUNK of them. Unavailable."""
        for chunk in range(0, max(len(adds), len(removes)), CHUNK):
            new, old = adds[chunk : chunk + CHUNK], removes[chunk : chunk + CHUNK]
            args = (node, hex_epoch(epoch), self._entry_ttl_s, len((new or old)[0]), b"".join(new), b"".join(old))
            await self._valkey.call(_ANNOUNCE, [self.prefix(fingerprint)], args)
            self._counters.announced += len(new)
            self._counters.withdrawn += len(old)

    async def find(
        self, fingerprint: bytes, marks: Sequence[bytes], live: Collection[int], *, deadline_s: float = TIMEOUT_S
    ) -> list[Found]:
        """Which of the processes `live` (epochs) have how many of the marks, given top down, keys of one length; the
        deepest first. Unavailable."""
        args = self.question(marks, live)
        answer = await self._valkey.call(_FIND, [self.prefix(fingerprint)], args, deadline_s=deadline_s)
        return self.read(answer, len(marks))

    def question(self, marks: Sequence[bytes], live: Collection[int]) -> tuple[bytes | str | int, ...]:
        """The arguments of FIND_TEXT."""
        epochs = "".join(map(hex_epoch, live))
        return b"".join(marks), len(marks[0]), epochs, self._entry_ttl_s, MAX_FOUND, MAX_FIELDS

    def read(self, answer: Sequence[object], count: int) -> list[Found]:
        """Its answer to a question about so many marks; nonsense is counted."""
        if answer and isinstance(answer[0], int):
            self._counters.ignored["mark"] += answer[0]
        found = [
            each
            for at in range(1, len(answer) - 2, 3)
            if (each := _parse(answer[at], answer[at + 1], answer[at + 2], count)) is not None
        ]
        self._counters.ignored["answer"] += max(0, len(answer) - 1 - 3 * len(found))
        return found


def hex_epoch(epoch: int) -> str:
    return f"{epoch:0{EPOCH_DIGITS}x}"


def _parse(index: object, node: object, epoch: object, count: int) -> Found | None:
    if not (isinstance(index, int) and isinstance(node, bytes) and isinstance(epoch, bytes)):
        return None
    if not 0 <= index < count or len(node) > MAX_NODE_BYTES or len(epoch) != EPOCH_DIGITS:
        return None
    try:
        return Found(index, node.decode("ascii"), int(epoch, 16))
    except ValueError:
        return None
