"""Generated request traces for judging eviction policies: prompts as lists of block ids, equal ids meaning equal
prefixes. Each kind is one pattern in its pure form; `KINDS` maps names to what makes the trace from a generator.
"""

import heapq
from collections.abc import Callable, Iterator

import numpy as np

Prompts = list[list[int]]
Rng = np.random.Generator


class Ids:
    """Numbers blocks, each once."""

    def __init__(self) -> None:
        self._next = 0

    def new(self, count: float) -> list[int]:
        first, self._next = self._next, self._next + max(1, int(count))
        return list(range(first, self._next))


def _documents(rng: Rng, ids: Ids, count: int, low: int, high: int) -> Prompts:
    """Documents of `low` to `high` blocks behind one system prompt."""
    root = ids.new(3)
    return [root + ids.new(rng.integers(low, high)) for _ in range(count)]


def _popularity(count: int, skew: float) -> np.ndarray:
    weights = 1 / np.arange(1, count + 1) ** skew
    return weights / weights.sum()


def zipf(skew: float) -> Callable[[Rng], Prompts]:
    """Questions about documents of unequal popularity."""

    def make(rng: Rng) -> Prompts:
        ids = Ids()
        documents = _documents(rng, ids, 1200, 8, 50)
        asked = rng.choice(len(documents), 5000, p=_popularity(len(documents), skew))
        return [documents[each] + ids.new(rng.integers(1, 5)) for each in asked]

    return make


def loop(rng: Rng) -> Prompts:
    """The same documents in the same order, again and again: what LRU evicts is what comes next."""
    ids = Ids()
    documents = _documents(rng, ids, 100, 8, 50)
    return [documents[n % 100] + ids.new(1) for n in range(4000)]


def scans(rng: Rng) -> Prompts:
    """Popular documents, and now and then a batch job that reads a hundred others once."""
    ids = Ids()
    documents, out = _documents(rng, ids, 80, 15, 40), list[list[int]]()
    while len(out) < 5000:
        out += [documents[each] + ids.new(2) for each in rng.choice(80, 150, p=_popularity(80, 0.7))]
        out += [ids.new(rng.integers(20, 50)) for _ in range(100)]
    return out


def phases(length: int) -> Callable[[Rng], Prompts]:
    """Every `length` requests all documents are replaced: yesterday's favourites are dead."""

    def make(rng: Rng) -> Prompts:
        ids, out = Ids(), list[list[int]]()
        while len(out) < 6000:
            documents = _documents(rng, ids, 150, 8, 40)
            asked = rng.choice(150, length, p=_popularity(150, 0.8))
            out += [documents[each] + ids.new(2) for each in asked]
        return out

    return make


def conversations(think_s: float, turns: float, spread: float) -> Callable[[Rng], Prompts]:
    """Chats that grow by turns: one begins a second, the next turn follows after a log-normal pause."""

    def make(rng: Rng) -> Prompts:
        ids = Ids()
        roots = [ids.new(rng.integers(2, 12)) for _ in range(5)]
        begins = np.cumsum(rng.exponential(1.0, 6000))
        queue: list[tuple[float, int, list[int]]] = [
            (float(at), n, roots[rng.integers(5)]) for n, at in enumerate(begins)
        ]
        heapq.heapify(queue)
        out, number = list[list[int]](), len(queue)
        while len(out) < 6000:
            at, _, so_far = heapq.heappop(queue)
            out.append(so_far + ids.new(1 + rng.lognormal(1.6, 0.8)))
            if rng.random() < 1 - 1 / turns:
                number += 1
                heapq.heappush(queue, (at + think_s * float(rng.lognormal(0, spread)), number, out[-1]))
        return out

    return make


def agents(rng: Rng) -> Prompts:
    """Fifteen agents at a time, each adding a few blocks a step to its own long prompt."""
    ids = Ids()
    roots = [ids.new(rng.integers(20, 60)) for _ in range(4)]
    live, out = list[list[int]](), list[list[int]]()
    while len(out) < 4000:
        while len(live) < 15:
            live.append(roots[rng.integers(4)] + ids.new(4))
        each = int(rng.integers(15))
        live[each] = live[each] + ids.new(rng.integers(1, 8))
        out.append(live[each])
        if rng.random() < 1 / 25:
            live.pop(each)
    return out


def misleading(rng: Rng) -> Prompts:
    """Against frequency: one document in four is used five times at once and never again, the others come back once,
    much later."""
    ids, out, later = Ids(), list[list[int]](), list[tuple[int, Prompts]]()
    while len(out) < 7000:
        burst = ids.new(10)
        out += [burst + ids.new(1) for _ in range(5)]
        slow = [ids.new(10) for _ in range(3)]
        out += slow
        later.append((len(out) + 200, slow))
        while later and later[0][0] <= len(out):
            out += later.pop(0)[1]
    return out


def drift(rng: Rng) -> Prompts:
    """Interest moves slowly through 3,000 documents."""
    ids = Ids()
    documents = _documents(rng, ids, 3000, 5, 40)
    centres = 0.4 * np.arange(6000) + np.abs(rng.normal(0, 80, 6000))
    return [documents[int(centre) % 3000] + ids.new(2) for centre in centres]


def uniform(rng: Rng) -> Prompts:
    """Nothing to be learned: every document is as likely as any other, always."""
    ids = Ids()
    documents = _documents(rng, ids, 500, 8, 50)
    return [documents[each] + ids.new(2) for each in rng.integers(500, size=5000)]


def treacherous(length: int) -> Callable[[Rng], Prompts]:
    """Against whoever learns: popular documents and misleading ones take turns of `length` requests."""

    def make(rng: Rng) -> Prompts:
        ids = Ids()
        documents, out = _documents(rng, ids, 600, 8, 40), list[list[int]]()
        other = _shifted(misleading(rng), 10_000_000)
        while len(out) < 8000:
            asked = rng.choice(600, length, p=_popularity(600, 0.9))
            out += [documents[each] + ids.new(2) for each in asked]
            out += [next(other) for _ in range(length)]
        return out

    return make


def _shifted(prompts: Prompts, by: int) -> Iterator[list[int]]:
    return ([block + by for block in prompt] for prompt in prompts)


KINDS: dict[str, Callable[[Rng], Prompts]] = {
    "zipf_0.6": zipf(0.6),
    "zipf_1.0": zipf(1.0),
    "loop": loop,
    "scans": scans,
    "phases_300": phases(300),
    "phases_1200": phases(1200),
    "chats_30s": conversations(30.0, 4.0, 1.0),
    "chats_200s": conversations(200.0, 3.0, 1.2),
    "chats_regular": conversations(90.0, 6.0, 0.3),
    "agents": agents,
    "misleading": misleading,
    "drift": drift,
    "uniform": uniform,
    "treacherous_300": treacherous(300),
    "treacherous_1000": treacherous(1000),
}
