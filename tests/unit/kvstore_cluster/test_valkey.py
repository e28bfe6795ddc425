"""When Valkey is taken for dead, without one: the calls' outcomes are given."""

import random

import pytest
from kvterrace.kvstore.cluster import valkey as module
from kvterrace.kvstore.cluster.valkey import Script, Unavailable, Valkey
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

pytestmark = pytest.mark.unit

SCRIPT = Script("return {}")


class Client:
    """Answers in turn with what it is given; errors are raised."""

    def __init__(self) -> None:
        self.answers: list[object] = []
        self.asked: list[str] = []

    async def execute_command(self, *args):
        self.asked.append(args[0])
        answer = self.answers.pop(0) if self.answers else []
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        pass


@pytest.fixture
def pair(monkeypatch):
    client = Client()
    monkeypatch.setattr(module, "make_client", lambda address, timeout_s: client)
    lost: list[int] = []
    made = Valkey("redis://:pw@h", rng=random.Random(1), on_lost=lambda: lost.append(1))
    made.lost = lost
    return made, client


async def reason(made: Valkey) -> str:
    with pytest.raises(Unavailable) as raised:
        await made.call(SCRIPT, [], [])
    return raised.value.reason


async def test_it_is_down_until_a_probe_succeeds_and_asks_nothing_meanwhile(pair):
    made, client = pair
    assert await reason(made) == "down"
    assert not client.asked
    await made.probe(SCRIPT, [], [])
    assert made.up
    assert await made.call(SCRIPT, [], []) == []


async def test_a_broken_connection_takes_it_down_at_once(pair):
    made, client = pair
    await made.probe(SCRIPT, [], [])
    client.answers = [RedisConnectionError("gone")]
    assert await reason(made) == "unreachable"
    assert not made.up
    assert made.lost == [1]
    asked = len(client.asked)
    assert await reason(made) == "down"
    assert len(client.asked) == asked


async def test_a_few_missed_deadlines_in_a_row_do_too(pair):
    made, client = pair
    await made.probe(SCRIPT, [], [])
    client.answers = [RedisTimeoutError(), RedisTimeoutError(), [], RedisTimeoutError(), RedisTimeoutError()]
    for expected in ("deadline", "deadline"):
        assert await reason(made) == expected
    await made.call(SCRIPT, [], [])
    for expected in ("deadline", "deadline"):
        assert await reason(made) == expected
    assert made.up, "a success between them counts"
    client.answers = [RedisTimeoutError()]
    assert await reason(made) == "deadline"
    assert not made.up


async def test_the_text_goes_only_when_the_hash_is_not_known(pair):
    made, client = pair
    client.answers = [NoScriptError("NOSCRIPT"), [1]]
    assert await made.probe(SCRIPT, [], []) == [1]
    assert client.asked == ["EVALSHA", "EVAL"]
    await made.call(SCRIPT, [], [])
    assert client.asked[2:] == ["EVALSHA"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (ResponseError("NOPERM no"), "denied"),
        (OutOfMemoryError("OOM"), "error"),
        (RuntimeError("in the client"), "error"),
        (OSError("no route"), "unreachable"),
        (b"OK", "error"),
        (None, "error"),
    ],
)
async def test_whatever_goes_wrong_is_unavailable(pair, answer, expected):
    made, client = pair
    await made.probe(SCRIPT, [], [])
    client.answers = [answer]
    assert await reason(made) == expected
    assert "pw" not in made.last_error


async def test_probes_back_off_with_jitter_and_not_too_far(pair):
    made, client = pair
    waits = []
    for _ in range(12):
        client.answers = [RedisConnectionError("gone")]
        with pytest.raises(Unavailable):
            await made.probe(SCRIPT, [], [])
        waits.append(made.backoff_s())
    assert 0.1 <= waits[0] <= 0.2
    assert all(1.0 <= wait <= 2.0 for wait in waits[4:])
    assert len(set(waits)) == 12
    await made.probe(SCRIPT, [], [])
    assert made.up
