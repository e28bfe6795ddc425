"""Claims: which node computes which part of a prompt, in Valkey, for long prompts. Found in the round trip of a lookup.

A claim is a value under each mark (marks.py) behind what anybody has, of the epoch and the name of who computes, with
the life of about twice what computing takes. The lookup that finds nobody who has, or computes, the next mark claims it
and those behind it for the asker: in one script, so that of two who ask at once one computes. A claim is a hint that
saves a computation; whoever waits for it asks its maker, and finds out when it was in vain.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import cast

from .directory import EPOCH_DIGITS, FIND_TEXT, MAX_NODE_BYTES, Directory, Found, hex_epoch
from .valkey import Script, Unavailable, Valkey

MAX_CLAIMED = 1024  # marks of one claim
LIFE_SHARE, LIFE_S, MAX_LIFE_S = 2.0, 5.0, 600.0

# Behind the search for holders, with its names: `deepest` is the last mark that somebody has.
_FIND_OR_CLAIM = Script(
    FIND_TEXT.removesuffix("return answer\n")
    + """
local life, mine = tonumber(ARGV[7]), ARGV[8]
local at, total = deepest + 1, #keys / size
local function key_of(i) return KEYS[2] .. string.sub(keys, i * size + 1, (i + 1) * size) end
local function claim(i)
  local value = redis.pcall('GET', key_of(i))
  if type(value) == 'string' and (value == mine or live[string.sub(value, 1, 16)]) then return value end
  return ''
end
local who, covered = '', at
if at < total then
  who = claim(at)
  if who ~= '' and who ~= mine then
    local to = total
    while to - covered > 1 do
      local middle = math.floor((covered + to) / 2)
      if claim(middle) == who then covered = middle else to = middle end
    end
  else
    who = mine
    for i = at, math.min(total, at + tonumber(ARGV[9])) - 1 do
      local there = claim(i)
      if there ~= '' and there ~= mine then break end
      redis.call('SET', key_of(i), mine, 'PX', life)
      covered = i
    end
  end
end
return {answer, who, at, covered}
"""
)

_WITHDRAW = Script("""
local size, keys, mine = tonumber(ARGV[1]), ARGV[2], ARGV[3]
for at = 1, #keys, size do
  local key = KEYS[1] .. string.sub(keys, at, at + size - 1)
  if redis.pcall('GET', key) == mine then redis.call('DEL', key) end
end
return {}
""")


@dataclass(frozen=True, slots=True)
class Claim:
    """That process of that node computes from the mark at index `first` of those asked for to the one at `last`."""

    node: str
    epoch: int
    first: int
    last: int


class Claims:
    """cluster: its name, without braces."""

    def __init__(self, valkey: Valkey, cluster: str, directory: Directory) -> None:
        self._valkey = valkey
        self._cluster = cluster
        self._directory = directory

    async def find_or_claim(
        self,
        fingerprint: bytes,
        marks: Sequence[bytes],
        live: Collection[int],
        mine: tuple[str, int],
        *,
        compute_s: float,
        deadline_s: float,
    ) -> tuple[list[Found], Claim | None]:
        """As Directory.find, and who computes what is behind it: `mine` (node and epoch) if nobody did. Unavailable."""
        node, epoch = mine
        life_s = min(LIFE_S + LIFE_SHARE * compute_s, MAX_LIFE_S)
        args = (
            *self._directory.question(marks, live),
            int(life_s * 1e3),
            hex_epoch(epoch) + node,
            MAX_CLAIMED,
        )
        prefixes = [self._directory.prefix(fingerprint), self._prefix(fingerprint)]
        answer = await self._valkey.call(_FIND_OR_CLAIM, prefixes, args, deadline_s=deadline_s)
        if len(answer) != 4 or not isinstance(answer[0], list):
            raise Unavailable("error", "Valkey answered a lookup with something else")
        found = cast("list[object]", answer[0])
        return self._directory.read(found, len(marks)), _parse(answer[1:], len(marks))

    async def withdraw(self, fingerprint: bytes, marks: Sequence[bytes], mine: tuple[str, int]) -> None:
        """`mine` does not compute these any more. Unavailable."""
        node, epoch = mine
        args = (len(marks[0]), b"".join(marks), hex_epoch(epoch) + node)
        await self._valkey.call(_WITHDRAW, [self._prefix(fingerprint)], args)

    def _prefix(self, fingerprint: bytes) -> str:
        return f"kvterrace:{self._cluster}:computing:{{{fingerprint.hex()}}}:"


def _parse(said: Sequence[object], count: int) -> Claim | None:
    who, first, last = said
    if not (isinstance(who, bytes) and isinstance(first, int) and isinstance(last, int)):
        return None
    if not 0 <= first <= last < count or not EPOCH_DIGITS < len(who) <= EPOCH_DIGITS + MAX_NODE_BYTES:
        return None
    try:
        return Claim(who[EPOCH_DIGITS:].decode("ascii"), int(who[:EPOCH_DIGITS], 16), first, last)
    except ValueError:
        return None
