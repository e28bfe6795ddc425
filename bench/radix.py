"""The prefix index: match, insert, evict and memory, at the sizes of a busy host.

Workload: prompts of 2,048 tokens, ids uniform below 150,000, in groups of 100 that share their first 1,024 tokens;
blocks of 16. Measurements of one kind are taken in turns, so that a noisy moment falls on all of them alike. Times are
processor time of the one thread at work: wall time on an idle machine, and still comparable on a shared one.
"""

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from kvterrace.radix import Adaptive, EvictionPolicy, Lru, PrefixIndex, Retained, S3Fifo
from numpy.typing import NDArray

B = 16
SEED = bytes(32)
REPEATS = 7
Row = dict[str, object]


def _row(metric: str, value: float, unit: str, of: str = "") -> Row:
    return {"metric": f"radix.{metric}", "value": value, "unit": unit, "of": of}


def _default() -> EvictionPolicy:
    return Retained(Adaptive())


def _tokens(rng: np.random.Generator, count: int) -> NDArray[np.int32]:
    return rng.integers(0, 150_000, count, dtype=np.int32)


def _prompts(rng: np.random.Generator, count: int) -> list[bytes]:
    heads = [_tokens(rng, 1024).tobytes() for _ in range(-(-count // 100))]
    return [heads[n // 100] + _tokens(rng, 1024).tobytes() for n in range(count)]


def _filled(prompts: list[bytes], index: PrefixIndex) -> PrefixIndex:
    values = np.arange(128)
    for prompt in prompts:
        index.insert(prompt, values)
    return index


def _medians(actions: dict[str, Callable[[], object]], inner: int) -> dict[str, float]:
    """Median seconds of each action over REPEATS turns; a turn takes the best of `inner` calls."""
    turns: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(REPEATS):
        for name, action in actions.items():
            best = float("inf")
            for _ in range(inner):
                began = time.thread_time()
                action()
                best = min(best, time.thread_time() - began)
            turns[name].append(best)
    return {name: statistics.median(values) for name, values in turns.items()}


def _match(rng: np.random.Generator) -> list[Row]:
    index = _filled(_prompts(rng, 10_000), PrefixIndex(SEED))
    long, short, turns = (_tokens(rng, count).tobytes() for count in (131_072, 32_768, 131_072))
    index.insert(long, np.arange(8192))
    index.insert(short, np.arange(2048))
    for turn in range(1, 257):  # another conversation leaves at each turn, so that every turn is an edge of its own
        index.insert(turns[: turn * 2048], np.arange(32 * turn))
        index.insert(turns[: turn * 2048] + _tokens(rng, B).tobytes(), np.arange(32 * turn + 1))
    asked, asked_short, asked_turns = (
        bytes(bytearray(tokens)) for tokens in (long, short, turns)
    )  # not the same object
    assert (index.match(asked).tokens, index.match(asked_turns).tokens) == (131_072, 131_072)
    times = _medians(
        {
            "match": lambda: index.match(asked),
            "memcmp": lambda: asked.startswith(long),
            "short": lambda: index.match(asked_short),
            "short_memcmp": lambda: asked_short.startswith(short),
            "turns": lambda: index.match(asked_turns),
        },
        inner=20,
    )
    memcmp, short_memcmp = 1e6 * times["memcmp"], 1e6 * times["short_memcmp"]
    return [
        _row("match_131072_us", 1e6 * times["match"], "us", f"plain memcmp {memcmp:.1f} us; limit 120"),
        _row("match_32768_us", 1e6 * times["short"], "us", f"plain memcmp {short_memcmp:.1f} us; limit 40"),
        _row("match_256_turns_us", 1e6 * times["turns"], "us", f"plain memcmp {memcmp:.1f} us; limit 400"),
    ]


def _insert(rng: np.random.Generator) -> list[Row]:
    prompts = _prompts(rng, 1000)
    tokens = 2048 * len(prompts) / 1e6

    def eager() -> None:
        index = PrefixIndex(SEED)
        for prompt in prompts:
            index.key(int(index.insert(prompt, values).blocks[-1]))

    values = np.arange(128)
    times = _medians(
        {
            "lazy": lambda: _filled(prompts, PrefixIndex(SEED)),
            "eager": eager,
            "s3": lambda: _filled(prompts, PrefixIndex(SEED, policy=S3Fifo())),
            "default": lambda: _filled(prompts, PrefixIndex(SEED, policy=_default())),
        },
        inner=1,
    )
    return [
        _row(
            "insert_mtok_s", tokens / times["lazy"], "Mtok/s", "keys when asked for; half of each prompt new; limit 12"
        ),
        _row("insert_eager_keys_mtok_s", tokens / times["eager"], "Mtok/s", "SHA-256 of every new block; half new"),
        _row("insert_s3fifo_mtok_s", tokens / times["s3"], "Mtok/s", "keys when asked for; path hashes for ghosts"),
        _row("insert_default_mtok_s", tokens / times["default"], "Mtok/s", "adaptive with retention; path hashes"),
    ]


def _evict(rng: np.random.Generator) -> list[Row]:
    """Microseconds a victim. By 128 is what admitting one prompt takes; a leaf of one block is the worst shape."""

    def prompts(count: int) -> list[bytes]:
        return [_tokens(rng, 2048).tobytes() for _ in range(count)]

    def leaves(count: int, policy: EvictionPolicy | None = None) -> PrefixIndex:
        index, value = PrefixIndex(SEED, policy=policy), np.zeros(1, dtype=np.int64)
        ids = _tokens(rng, count * B).reshape(count, B)
        for row in ids:
            index.insert(row.tobytes(), value)
        return index

    gc.disable()  # the collector's passes over a million nodes belong to whoever built them
    try:
        million = prompts(7813)
        indexes = {
            "1m": _filled(million, PrefixIndex(SEED)),
            "1m_s3fifo": _filled(million, PrefixIndex(SEED, policy=S3Fifo())),
            "1m_default": _filled(million, PrefixIndex(SEED, policy=_default())),
            "10k": _filled(prompts(80), PrefixIndex(SEED)),
            "10k_default": _filled(prompts(80), PrefixIndex(SEED, policy=_default())),
            "1m_leaves": leaves(1_000_000),
            "10k_leaves": leaves(10_240),
            "1m_leaves_default": leaves(1_000_000, _default()),
        }
        del million
        times: dict[str, list[float]] = {name: [] for name in indexes}
        ones: list[float] = []
        for _ in range(REPEATS):
            for name, index in indexes.items():
                began = time.thread_time()
                gone = sum(len(index.evict(128)) for _ in range(10))
                times[name].append((time.thread_time() - began) / gone)
            began = time.thread_time()
            for _ in range(100):
                indexes["1m"].evict(1)
            ones.append((time.thread_time() - began) / 100)
    finally:
        gc.enable()
    medians = {name: 1e6 * statistics.median(values) for name, values in times.items()}
    of = {
        "1m": f"{medians['10k']:.2f} us at 10^4 blocks",
        "1m_leaves": f"{medians['10k_leaves']:.2f} us at 10^4 leaves",
        "1m_default": f"{medians['10k_default']:.2f} us at 10^4 blocks",
    }
    rows = [_row(f"evict_us_{name}", value, "us/block", of.get(name, "")) for name, value in medians.items()]
    return [*rows, _row("evict_one_us_1m", 1e6 * statistics.median(ones), "us", "evict(1), a call a block")]


def _memory(rng: np.random.Generator) -> list[Row]:
    """Allocated bytes a block, as tracemalloc counts them, spare capacity included."""
    prompts, rows = _prompts(rng, 2000), list[Row]()
    of = "2,000 prompts of 2,048 tokens, 100 sharing 1,024; "
    for name, policy, keyed, note in (
        ("bytes_per_block", Lru, False, "limit 160"),
        ("bytes_per_block_keyed", Lru, True, "all keys asked for"),
        ("bytes_per_block_s3fifo", S3Fifo, False, "ghost table included"),
        ("bytes_per_block_default", _default, False, "adaptive with retention; what is remembered included"),
    ):
        gc.collect()
        tracemalloc.start()
        index = _filled(prompts, PrefixIndex(SEED, policy=policy()))
        if keyed:
            for block in list(index.iterate()):
                index.key(block)
        gc.collect()
        allocated, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        rows.append(_row(name, allocated / len(index), "B", of + note))
    return rows


def run() -> list[Row]:
    """All of it, about three minutes and 5 GiB."""
    rng = np.random.default_rng(11)
    return [row for part in (_match, _insert, _evict, _memory) for row in part(rng)]
