"""A model of Valkey: the commands that the product's scripts use, on a clock of one's own. Scripts are run as they are.

tests/cluster_sim/test_valkey_model.py asks it and a real Valkey the same questions, so that it cannot drift.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, cast

from . import lua
from .lua import ReplyError, Status

_WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class ValkeyModel:
    """clock: wall clock, seconds."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._scripts: dict[str, str] = {}
        self._values: dict[bytes, Any] = {}  # bytes, dict of a hash, or dict of a sorted set in a tuple
        self._ends: dict[bytes, float] = {}
        self.unknown: set[str] = set()  # commands that it lacks
        self.calls = 0
        self.restart(keep=False)

    def restart(self, *, keep: bool) -> None:
        """Another process, which knows no script; keep: it had saved its data."""
        self.run_id = f"{self._rng.getrandbits(160):040x}"
        self._scripts.clear()
        if not keep:
            self.lose()

    def lose(self) -> None:
        """All data, as FLUSHALL."""
        self._values.clear()
        self._ends.clear()

    def execute(self, *parts: object) -> Any:
        """A command of a client. ReplyError; NOSCRIPT is one."""
        self.calls += 1
        sent = [part if isinstance(part, bytes) else str(part).encode() for part in parts]
        name = sent[0].decode().upper()
        if name not in {"EVAL", "EVALSHA"}:
            return self._command(sent)
        count = int(sent[2])
        if name == "EVAL":
            text = sent[1].decode()
            self._scripts[_sha(text)] = text
        else:
            found = self._scripts.get(sent[1].decode())
            if found is None:
                raise ReplyError("NOSCRIPT No matching script. Please use EVAL.")
            text = found
        return lua.run(text, sent[3 : 3 + count], sent[3 + count :], self._command)

    def hashes(self, prefix: bytes) -> dict[bytes, dict[bytes, bytes]]:
        """All live hashes whose names begin so; for invariants."""
        names = [name for name in list(self._values) if name.startswith(prefix) and self._live(name)]
        return {name: dict(self._values[name]) for name in names if isinstance(self._values[name], dict)}

    def _command(self, parts: Sequence[bytes]) -> object:
        name = parts[0].decode().lower()
        method = getattr(self, f"_do_{name}", None)
        if method is None:
            self.unknown.add(name)
            raise ReplyError(f"ERR unknown command '{name}'")
        return method(*parts[1:])

    def _live(self, key: bytes) -> bool:
        if key in self._ends and self._clock() >= self._ends[key]:
            self._values.pop(key, None)
            del self._ends[key]
        return key in self._values

    def _get(self, key: bytes, kind: type) -> Any:
        """Its value; None when there is none."""
        if not self._live(key):
            return None
        value = self._values[key]
        if not isinstance(value, kind):
            raise ReplyError(_WRONG_TYPE)
        return value

    def _do_time(self) -> list[object]:
        now = self._clock()
        return [str(int(now)).encode(), str(int(now % 1 * 1e6)).encode()]

    def _do_info(self, section: bytes = b"") -> bytes:
        return f"# Server\r\nrun_id:{self.run_id}\r\n".encode()

    def _do_type(self, key: bytes) -> Status:
        if not self._live(key):
            return Status(b"none")
        value = self._values[key]
        return Status(b"string" if isinstance(value, bytes) else b"hash" if isinstance(value, dict) else b"zset")

    def _do_del(self, *keys: bytes) -> int:
        count = sum(self._live(key) for key in keys)
        for key in keys:
            self._values.pop(key, None)
            self._ends.pop(key, None)
        return count

    def _do_exists(self, *keys: bytes) -> int:
        return sum(self._live(key) for key in keys)

    def _do_expire(self, key: bytes, seconds: bytes) -> int:
        return self._do_pexpire(key, b"%d" % (int(seconds) * 1000))

    def _do_pexpire(self, key: bytes, ms: bytes) -> int:
        if not self._live(key):
            return 0
        self._ends[key] = self._clock() + int(ms) / 1e3
        return 1

    def _do_pttl(self, key: bytes) -> int:
        if not self._live(key):
            return -2
        return max(0, math.floor((self._ends[key] - self._clock()) * 1e3)) if key in self._ends else -1

    def _do_ttl(self, key: bytes) -> int:
        left = self._do_pttl(key)
        return left if left < 0 else (left + 500) // 1000

    def _do_get(self, key: bytes) -> bytes | None:
        return cast("bytes | None", self._get(key, bytes))

    def _do_set(self, key: bytes, value: bytes, *options: bytes) -> object:
        words = [option.upper() for option in options]
        if (b"NX" in words and self._live(key)) or (b"XX" in words and not self._live(key)):
            return None
        self._values[key] = value
        if b"KEEPTTL" not in words:
            self._ends.pop(key, None)
        for word, scale in ((b"PX", 1e-3), (b"EX", 1.0)):
            if word in words:
                self._ends[key] = self._clock() + int(options[words.index(word) + 1]) * scale
        return Status(b"OK")

    def _do_incr(self, key: bytes) -> int:
        old = self._get(key, bytes)
        if old is not None and not old.lstrip(b"-").isdigit():
            raise ReplyError("ERR value is not an integer or out of range")
        new = int(old or 0) + 1
        self._values[key] = str(new).encode()
        return new

    def _do_hset(self, key: bytes, *pairs: bytes) -> int:
        table = self._get(key, dict)
        if table is None:
            table = self._values[key] = {}
        before = len(table)
        table.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(table) - before

    def _do_hget(self, key: bytes, field: bytes) -> bytes | None:
        return (self._get(key, dict) or {}).get(field)

    def _do_hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        return [(self._get(key, dict) or {}).get(field) for field in fields]

    def _do_hlen(self, key: bytes) -> int:
        return len(self._get(key, dict) or ())

    def _do_hgetall(self, key: bytes) -> list[bytes]:
        return [part for pair in (self._get(key, dict) or {}).items() for part in pair]

    def _do_hdel(self, key: bytes, *fields: bytes) -> int:
        table = self._get(key, dict) or {}
        count = sum(table.pop(field, None) is not None for field in fields)
        if not table:
            self._do_del(key)
        return count

    def _zset(self, key: bytes) -> dict[bytes, float] | None:
        value = self._get(key, tuple)
        return None if value is None else value[0]

    def _do_zadd(self, key: bytes, *pairs: bytes) -> int:
        table = self._zset(key)
        if table is None:
            table = {}
            self._values[key] = (table,)
        before = len(table)
        table.update({member: float(score) for score, member in zip(pairs[::2], pairs[1::2], strict=True)})
        return len(table) - before

    def _do_zrem(self, key: bytes, *members: bytes) -> int:
        table = self._zset(key) or {}
        count = sum(table.pop(member, None) is not None for member in members)
        if not table:
            self._do_del(key)
        return count

    def _do_zcard(self, key: bytes) -> int:
        return len(self._zset(key) or ())

    def _do_zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = (self._zset(key) or {}).get(member)
        return None if score is None else f"{score:.17g}".encode()

    def _sorted(self, key: bytes) -> list[tuple[float, bytes]]:
        return sorted((score, member) for member, score in (self._zset(key) or {}).items())

    def _do_zrange(self, key: bytes, first: bytes, last: bytes) -> list[bytes]:
        members = [member for _, member in self._sorted(key)]
        low, high = (at + len(members) if at < 0 else at for at in (int(first), int(last)))
        return members[max(0, low) : high + 1]

    def _do_zrangebyscore(self, key: bytes, low: bytes, high: bytes, *limit: bytes) -> list[bytes]:
        least, most = float(low), float(high)
        members = [member for score, member in self._sorted(key) if least <= score <= most]
        if limit:
            skip, count = int(limit[1]), int(limit[2])
            members = members[skip : skip + count if count >= 0 else None]
        return members


def _sha(text: str) -> str:
    import hashlib

    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
