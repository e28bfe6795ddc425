"""Why the first block beyond what was found is not there: in DRAM, and what a request is told of it."""

import asyncio
from dataclasses import replace

import pytest
from kvterrace.kvstore.types import Miss, Origin, Receipt
from kvterrace.kvstore.why import LEAST_SHARED, MAX_HASHED, MAX_NAMESPACES
from kvterrace.proto import BlockLayout, Namespace
from kvterrace.radix import unpack_tokens

pytestmark = pytest.mark.unit

B = 4


def test_an_evicted_block_says_when_it_left_and_how_long_it_was_there(desk) -> None:
    d = desk(4)
    session = d.open()
    d.save(session, d.prompt(1, 4))
    d.now += 30
    d.save(session, d.prompt(2, 4))
    d.now += 12
    got = d.ask(session, d.prompt(1, 4))
    assert got.miss == Miss("evicted", 0, "dram", 12.0, 30.0)
    assert got.reason == "evicted"
    assert d.store.stats().counters.residence["dram", "unused"].total == 4


def test_the_place_is_the_first_token_of_the_block_that_is_missing(desk) -> None:
    d = desk()
    session = d.open()
    d.save(session, d.prompt(1, 3))
    d.ask(session, d.prompt(1, 3))
    got = d.ask(session, d.prompt(1, 9))
    assert (got.miss.reason, got.miss.token) == ("never_seen", 3 * B)
    asyncio.run(d.store.clear())
    d.now += 7
    got = d.ask(session, d.prompt(1, 9))
    assert got.miss == Miss("cleared", 0, "dram", 7.0, 0.0)


@pytest.mark.parametrize("tokens", [3 * B, 3 * B + 1, 4 * B - 1])
def test_a_tail_that_is_no_full_block_is_no_miss(desk, tokens: int) -> None:
    d = desk()
    session = d.open()
    d.save(session, d.prompt(1, 3))
    got = d.ask(session, d.prompt(1, 4)[: tokens * 4])
    assert (got.reason, got.miss) == ("", None)
    assert session.lookup(d.prompt(1, 4)[: tokens * 4]).miss is None


@pytest.mark.parametrize("at", [4, 5, 7, 8, 11])
def test_a_prompt_that_parts_from_a_cached_one_says_at_which_token(desk, at: int) -> None:
    d = desk()
    session = d.open()
    known = list(range(1, 13))
    d.save(session, d.tokens(*known))
    other = [*known[:at], 999, *known[at + 1 :], 5, 5, 5, 5]
    miss = d.ask(session, d.tokens(*other)).miss
    assert (miss.reason, miss.token) == ("diverged", at)
    assert list(unpack_tokens(miss.cached)) == known[at:]
    assert session.lookup(d.tokens(*other)).miss == miss


def test_one_token_in_common_at_the_start_is_no_shared_head(desk) -> None:
    """A tokenizer begins every prompt with the same one."""
    d = desk()
    session = d.open()
    d.save(session, d.tokens(1, 2, 3, 4))
    assert d.ask(session, d.tokens(1, 9, 9, 9)).miss == Miss("never_seen", 0)
    miss = d.ask(session, d.tokens(1, 2, 9, 9)).miss
    assert (miss.reason, miss.token) == ("diverged", LEAST_SHARED)


def test_a_ghost_is_more_certain_than_a_neighbour(desk) -> None:
    d = desk(4)
    session = d.open()
    head = [1, 2, 3, 4]
    d.save(session, d.tokens(*head, 5, 6, 7, 8))
    d.now += 1
    d.save(session, d.tokens(*head, 5, 9, 9, 9))
    d.now += 1
    d.save(session, d.tokens(*head, 5, 0, 0, 0))
    d.now += 1
    d.save(session, d.prompt(7, 1))
    miss = d.ask(session, d.tokens(*head, 5, 6, 7, 8)).miss
    assert (miss.reason, miss.token, miss.tier) == ("evicted", 4, "dram")


def test_what_somebody_writes_now_is_not_committed(desk) -> None:
    d = desk()
    writer, reader = d.open(), d.open()
    d.save(writer, d.tokens(1, 2, 3, 4, 9, 9, 9, 9))
    writer.reserve(d.tokens(1, 2, 3, 4, 5, 6, 7, 8), start=1, count=1)
    assert d.ask(reader, d.tokens(1, 2, 3, 4, 5, 6, 7, 8)).miss == Miss("not_committed", 4)


def test_a_corrupt_block_says_so_and_those_below_it(desk) -> None:
    d = desk()
    session = d.open()
    d.save(session, d.prompt(1, 4))
    got = asyncio.run(session.acquire(d.prompt(1, 4), skip=0, deadline_s=0))
    session.release(got.lease, [1])
    miss = d.ask(session, d.prompt(1, 4)).miss
    assert (miss.reason, miss.token, miss.tier) == ("corrupt", B, "dram")


NEIGHBOURS = [
    ({"weights_digest": b"weights-1"}, ("weights",)),
    ({"adapter_digest": b"adapter"}, ("adapter",)),
    ({"producer": "another"}, ("producer",)),
    ({"hash_name": "xxh3-128"}, ("hash",)),
    ({"first_layer": 8}, ("layers",)),
    ({"layout": BlockLayout(1, 1, 2, B, 64, "bfloat16")}, ("dtype",)),
    ({"weights_digest": b"weights-1", "layout": BlockLayout(2, 2, 2, B, 32, "float16")}, ("weights", "layout")),
]


@pytest.mark.parametrize(("change", "fields"), NEIGHBOURS)
def test_the_same_tokens_in_another_namespace_name_what_differs(desk, space: Namespace, change, fields) -> None:
    d = desk()
    other, session = d.open(replace(space, **change)), d.open()
    given = other.reserve(d.prompt(1, 2), start=0, count=2)
    assert other.commit(given.lease, [1, 2])
    assert d.ask(session, d.prompt(1, 3)).miss == Miss("other_namespace", 0, fields=fields)
    d.save(session, d.prompt(1, 1))
    assert d.ask(session, d.prompt(1, 3)).miss == Miss("other_namespace", B, fields=fields)
    d.save(session, d.prompt(1, 2))
    assert d.ask(session, d.prompt(1, 3)).miss == Miss("never_seen", 2 * B), "the other has no more, either"


def test_a_full_block_must_be_the_same_in_the_other_namespace(desk, space: Namespace) -> None:
    d = desk()
    other, session = d.open(replace(space, producer="another")), d.open()
    d.save(other, d.tokens(1, 2, 3, 4))
    assert d.ask(session, d.tokens(1, 2, 3, 9)).miss == Miss("never_seen", 0)


def test_blocks_of_another_size_are_not_compared(desk, space: Namespace, layout: BlockLayout) -> None:
    d = desk()
    other = d.open(replace(space, layout=replace(layout, block_tokens=2)))
    given = other.reserve(d.prompt(1, 1), start=0, count=2)
    assert other.commit(given.lease, [1, 2])
    assert d.ask(d.open(), d.prompt(1, 1)).reason == "never_seen"


def test_of_several_namespaces_the_one_that_differs_least_is_named(desk, space: Namespace) -> None:
    d = desk()
    for change in (
        {"producer": "x", "adapter_digest": b"a"},
        {"producer": "x"},
        {"weights_digest": b"w" * 8, "producer": "y"},
    ):
        d.save(d.open(replace(space, **change)), d.prompt(1, 1))
    assert d.ask(d.open(), d.prompt(1, 1)).miss.fields == ("producer",)


def test_only_so_many_namespaces_are_searched(desk, space: Namespace) -> None:
    d = desk()
    d.save(d.open(replace(space, producer="old")), d.prompt(1, 1))
    for each in range(MAX_NAMESPACES):
        d.open(replace(space, producer=f"new{each}"))
    session = d.open()
    assert d.ask(session, d.prompt(1, 1)).reason == "never_seen"


def test_what_the_engine_has_itself_is_not_what_is_missing(desk) -> None:
    """The blocks that it skips are in its own memory: the reason is that of the first one that it must compute."""
    d = desk(8)
    session = d.open()
    d.save(session, d.prompt(1, 6))
    d.now += 5
    d.save(session, d.prompt(2, 6))  # four of the first prompt's blocks leave
    assert d.ask(session, d.prompt(1, 9), skip=4).miss == Miss("evicted", 4 * B, "dram", 0.0, 5.0)
    assert d.ask(session, d.prompt(1, 9), skip=7).miss == Miss("never_seen", 7 * B)
    assert d.ask(session, d.prompt(1, 6), skip=6).miss is None
    far = MAX_HASHED + 8
    assert d.ask(session, d.prompt(3, far + 1), skip=far).miss == Miss("never_seen", far * B)


def test_too_many_leases_are_the_reason_wherever_the_blocks_are(desk) -> None:
    d = desk(max_session_leases=1)
    session = d.open()
    d.save(session, d.prompt(1, 2))
    held = asyncio.run(session.acquire(d.prompt(1, 2), skip=0, deadline_s=0))
    got = asyncio.run(session.acquire(d.prompt(1, 2), skip=1, deadline_s=0))
    assert (got.reason, got.miss) == ("busy", Miss("busy", B))
    session.release(held.lease)


def test_misses_are_counted_in_tokens_by_reason(desk, space: Namespace) -> None:
    d = desk()
    other, session = d.open(replace(space, producer="x")), d.open()
    d.save(other, d.prompt(1, 2))
    d.save(session, d.tokens(1, 2, 3, 4, 5, 6, 7, 8))
    d.ask(session, d.prompt(1, 2))
    d.ask(session, d.tokens(1, 2, 3, 4, 5, 6, 0, 0))
    d.ask(session, d.prompt(2, 3))
    assert d.store.stats().counters.miss_tokens == {"other_namespace": 2 * B, "diverged": B, "never_seen": 3 * B}


def test_a_dry_run_says_the_same_and_changes_nothing(desk, space: Namespace) -> None:
    d = desk()
    session = d.open()
    d.save(session, d.tokens(1, 2, 3, 4, 5, 6, 7, 8))
    before = d.store.stats()
    asked = d.tokens(1, 2, 3, 4, 5, 6, 0, 0)
    said = d.store.explainer.explain(session.fingerprint, asked)
    assert (said.tokens, said.miss.reason, said.miss.token) == ({"dram": B}, "diverged", 6)
    assert said.miss == session.lookup(asked).miss
    assert d.store.explainer.explain(b"?" * 32, asked) is None
    after = d.store.stats()
    assert (after.counters.miss_tokens, after.counters.acquires) == ({}, before.counters.acquires)
    assert after.tiers == before.tiers
    assert d.ask(session, asked).miss == said.miss


def test_a_receipt_is_the_engines_word_unless_the_store_knows_a_secret(desk) -> None:
    d = desk()
    session = d.open()
    got = d.ask(session, d.prompt(1, 1), origin=Origin("chatcmpl-1"))
    session.served(Receipt("chatcmpl-1", {"computed": 4}, got.miss))
    (kept,) = d.store.insight.receipts
    assert (kept.miss, kept.client, kept.fingerprint) == (got.miss, "test", session.fingerprint)


def test_clearing_a_prefix_takes_it_and_what_hangs_below_and_no_more(desk) -> None:
    d = desk()
    session = d.open()
    head = [1, 2, 3, 4]
    for tail in ([5, 6, 7, 8, 9, 9, 9, 9], [5, 6, 7, 8, 1, 1, 1, 1], [7, 7, 7, 7]):
        d.save(session, d.tokens(*head, *tail))
    writing = session.reserve(d.tokens(*head, 5, 6, 7, 8, 2, 2, 2, 2), start=2, count=1)
    space = d.store._spaces[session.fingerprint]
    assert space.clear_prefix(d.tokens(*head, 5, 6, 7, 9)) == 0, "nothing is known of it"
    assert space.clear_prefix(b"") == 0
    assert not space.writes[writing.lease].void
    assert space.clear_prefix(d.tokens(*head, 5, 6, 7, 8, 77)) == 3
    assert not session.commit(writing.lease, [1]), "what was on its way does not come back"
    miss = d.ask(session, d.tokens(*head, 5, 6, 7, 8)).miss
    assert (miss.reason, miss.token) == ("cleared", 4)
    assert d.ask(session, d.tokens(*head, 7, 7, 7, 7)).miss is None
